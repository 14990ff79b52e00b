"""`lab.real_models` from a hub on this machine: downloads, what is left out, and what fails."""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.models.architectures.registry import ARCHITECTURES
from edgespec.system.size import GIB, parse_size
from tests.support import llama_peer
from tests.support.command_line import ROOT
from tests.support.hub_server import Faults, HubServer
from tests.support.lab_runs import RealModels

LIST = ROOT / "lab" / "real_models.toml"


@pytest.fixture
def published(tmp_path: Path) -> Iterator[RealModels]:
    (tmp_path / "hub").mkdir()
    with HubServer(tmp_path / "hub", token="a token", faults=Faults()).running() as hub:
        yield RealModels(hub, tmp_path / "out")


def test_the_list_has_a_model_of_nearly_every_architecture() -> None:
    models = tomllib.loads(LIST.read_text("utf-8"))["model"]
    listed = [model["architecture"] for model in models]
    too_large = {"llama4", "glm4moe"}
    assert sorted(listed) == sorted(ARCHITECTURES.keys() - too_large)
    assert all(parse_size(model["size"]) < 24 * GIB for model in models)
    assert all(model["licence"] and model["why"] for model in models)


def test_a_download_goes_on_where_it_was_cut(published: RealModels) -> None:
    """By the end of an earlier run, and then three times by the network."""
    content = published.publish("llama").read_bytes()
    published.list({"name": "llama"})
    found = published.run("--parts", "")
    assert found.returncode == 0, found.stderr
    (model,) = published.models()
    (path,) = published.downloads()
    assert path.read_bytes() == content
    assert model["facts"]["architecture"] == "llama" and model["facts"]["types"] == "F16"
    assert model["bytes"] == len(content) and model["problems"] == []

    (published.out / "finished.jsonl").unlink()
    path.unlink()
    digest = hashlib.sha256(content).hexdigest()
    path.with_name(f"{path.name}.{digest[:12]}.part").write_bytes(content[:1000])
    published.hub.faults.cuts = 3
    published.hub.asked.clear()
    found = published.run("--parts", "")
    assert found.returncode == 0, found.stderr
    assert path.read_bytes() == content
    ranges = [one.range for one in published.hub.asked if one.path.startswith("/bytes/")]
    begins = [int(text.removeprefix("bytes=").rstrip("-")) for text in ranges]
    assert begins[0] == 1000 and begins == sorted(begins) and len(begins) == 4


def test_what_is_finished_is_not_asked_for_again(published: RealModels) -> None:
    published.publish("llama")
    published.list({"name": "llama"})
    assert published.run("--parts", "", "--delete").returncode == 0
    before = published.models()
    assert published.downloads() == [], "it was deleted once it was measured"
    published.hub.asked.clear()
    found = published.run("--parts", "")
    assert found.returncode == 0, found.stderr
    assert published.models() == before
    assert published.hub.asked == []


def test_what_fails_is_a_sentence_and_not_the_end(published: RealModels) -> None:
    """Every way in which a model cannot be had or measured, and one that can, in one run."""
    published.publish("llama")
    published.publish("qwen3").with_name("qwen3-Q4.gguf").write_bytes(b"another")
    published.publish("gemma3")
    published.publish("lfm2").write_bytes(b"GGUF but no more")
    published.hub.faults.damaged = "gemma3"
    published.list(
        {"name": "nowhere"},
        {"name": "llama", "file": "*Q8_0.gguf"},
        {"name": "qwen3"},
        {"name": "gemma3"},
        {"name": "lfm2"},
        {"name": "other", "repo": "random/llama-GGUF"},
    )
    found = published.run("--parts", "greedy", "--prompts", 1, "--tokens", 2, "--threads", 1)
    assert found.returncode == 1
    problems = [" ".join(model["problems"]) for model in published.models()]
    assert "cannot list random/nowhere-GGUF" in problems[0]
    assert "random/llama-GGUF has no model called *Q8_0.gguf; choose with" in problems[1]
    assert "has 2 models called *.gguf" in problems[2]
    assert "sent other bytes of gemma3-F16.gguf than it lists" in problems[3]
    assert problems[4].startswith("file: ") and "lfm2-F16.gguf" in problems[4]
    assert "the file's architecture is llama" in problems[5]
    if not llama_peer.installed():
        assert "greedy: llama-cpp-python is not installed" in problems[5]
    assert all("\n" not in problem for problem in problems)
    assert not [path for path in published.downloads() if "gemma3" in path.name], (
        "wrong bytes are not kept"
    )
    kept = (published.out / "finished.jsonl").read_text("utf-8").splitlines()
    assert len(kept) == 2, "what was not had is tried again, the rest is finished"
    table = (published.out / "table.md").read_text("utf-8").splitlines()
    assert len([line for line in table if line.startswith("|")]) == 2 + len(problems)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (("--memory", "1GiB"), "both engines need 2.0"),
        (("--disk", "1MiB"), "1.0 MiB of disk may be used"),
    ],
    ids=["memory", "disk"],
)
def test_what_does_not_fit_is_not_downloaded(
    published: RealModels, limit: tuple[str, str], words: str
) -> None:
    published.publish("llama")
    published.list({"name": "llama"})
    assert published.run(*limit).returncode == 1
    (model,) = published.models()
    assert words in model["problems"][0]
    assert not any("resolve" in one.path for one in published.hub.asked)


def test_a_gated_model_is_told(published: RealModels) -> None:
    published.publish("llama")
    published.list({"name": "llama"})
    assert published.run("--parts", "", HF_TOKEN="another").returncode == 1
    (model,) = published.models()
    assert "cannot list random/llama-GGUF: 401" in model["problems"][0]


def test_a_wrong_request_is_refused_in_a_sentence(published: RealModels) -> None:
    published.list({"name": "llama"})
    assert _refused(published.run("--only", "phi3")).endswith("has no model phi3")
    assert "there is no part speeds; use greedy" in _refused(published.run("--parts", "speeds"))
    (published.out / "list.toml").write_text('[[model]]\nnam = "x"\n')
    assert "is no list of models" in _refused(published.run())


def _refused(found: subprocess.CompletedProcess[str]) -> str:
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    return line
