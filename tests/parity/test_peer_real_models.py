"""The whole of `lab.real_models`, from a hub on this machine to the table, on random models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import llama_peer
from tests.support.hub_server import Faults, HubServer
from tests.support.lab_runs import RealModels

pytestmark = pytest.mark.slow
QUESTIONS = {"writing": "Write about the sea.", "math": "What is 12 times 12?"}


@pytest.fixture
def published(tmp_path: Path) -> Iterator[RealModels]:
    (tmp_path / "hub").mkdir()
    with HubServer(tmp_path / "hub", faults=Faults(cuts=2)).running() as hub:
        yield RealModels(hub, tmp_path / "out")


def test_random_models_are_measured_from_the_hub_to_the_table(published: RealModels) -> None:
    if not llama_peer.installed():
        pytest.skip("llama-cpp-python is not installed")
    published.publish("qwen3")
    published.publish("llama", type="Q8_0")
    published.list({"name": "qwen3"}, {"name": "llama"})
    questions = published.out / "questions.jsonl"
    lines = [
        {"question_id": number, "category": category, "turns": [text]}
        for number, (category, text) in enumerate(QUESTIONS.items())
    ]
    questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    small = ["--prompts", 2, "--tokens", 12, "--text-tokens", 500, "--rounds", 1]
    small += ["--context", 256, "--past", 16, "--threads", 1, "--per-category", 1]
    found = published.run("--questions", questions, *small)
    assert "everything measured: MISSED" not in found.stdout, found.stdout

    exact, rounded = published.models()
    for model in (exact, rounded):
        assert model["problems"] == []
        parts = model["parts"]
        assert parts["greedy"]["tokens"] == 24
        assert parts["perplexity"]["tokens"] >= 500
        assert parts["questions"]["questions"] == 2
        assert set(parts["questions"]["categories"]) == set(QUESTIONS)
        assert 0 < parts["budget"]["peak_bytes"] <= parts["budget"]["budget_bytes"]
        for side in ("ours", "peers"):
            assert parts["speed"][side]["decode_tokens_per_s"] > 0
            assert parts["speed"][side]["T(8)/T(1)"] > 0
    assert exact["parts"]["greedy"]["worst_cosine"] > 0.9999
    assert exact["parts"]["greedy"]["different"] == 0
    assert abs(exact["parts"]["perplexity"]["difference"]) < 0.01
    table = (published.out / "table.md").read_text("utf-8")
    assert "| qwen3 | qwen3 | F16 |" in table and "| llama | llama | Q8_0 |" in table
