"""Drafting with heads: the text stays, drafts are accepted, and nothing is held that was not
planned.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.engine.engine import Engine
from edgespec.errors import OptionError
from edgespec.loading import model_drafters
from edgespec.memory.plan.head_sizes import HEAD_ITEM
from edgespec.memory.plan.state_layout import STATES_ITEM
from tests.support.assistants import AGREEING, agreeing_model, write_assistant
from tests.support.equality import Case, same, verify_everything
from tests.support.gguf_models import write_gguf
from tests.support.heads import (
    agreeing_eagle3,
    write_checkpoint,
    write_eagle3,
    write_model,
)
from tests.support.random_models import write

PROMPT = tuple(int(each) for each in np.random.default_rng(0).integers(3, 500, 40))
TEMPERATURES = (0.0, 0.7, 1.2)
COMMON: dict[str, Any] = {"backend": "native", "context": 256, "memory": "auto"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def hybrid(folder: Path) -> Path:
    return write_model("qwen35", folder / "hybrid.gguf", agreeing=True)


@pytest.fixture(scope="module")
def llama(folder: Path) -> Path:
    return write_model("llama", folder / "llama.gguf", agreeing=True)


@pytest.fixture(scope="module")
def eagle(folder: Path, llama: Path) -> Path:
    return write_eagle3(folder / "eagle.gguf", *agreeing_eagle3(llama))


def equal_in_all_ways(engine: Engine, source: str) -> tuple[int, int]:
    """Compare replies with plain decoding, at every temperature; returns how many of the head's
    drafts there were, and were accepted: where text repeats itself, others say it all.
    """
    drafted = accepted = 0
    for temperature in TEMPERATURES:
        case = Case(PROMPT, temperature, seed=3, max_tokens=40, ignore_eos=True)
        plain = case.plain(engine)
        found = case.speculative(engine, "drafter", None, plain)
        assert same(plain, found)
        drafted += found.stats.by_source[source]["drafted"]
        accepted += found.stats.by_source[source]["accepted"]
        for shape in ("chain", "tree"):
            assert same(plain, case.speculative(engine, shape, None, plain))
        turn = Case((*PROMPT, *plain.token_ids, 7, 8, 9), temperature, 4, 24, ignore_eos=True)
        expected = turn.plain(engine)
        case.speculative(engine, "drafter", None, plain)
        assert same(expected, turn.speculative(engine, "drafter", None, expected, continued=True))
    return drafted, accepted


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("drafters", ["mtp", "suffix-automaton,mtp,trigram"])
def test_a_models_own_head_changes_no_text(hybrid: Path, drafters: str, threads: int) -> None:
    with edgespec.load(hybrid, drafters=drafters, threads=threads, **COMMON) as engine:
        drafted, accepted = equal_in_all_ways(engine, "mtp")
        assert drafted > 0
        assert drafters != "mtp" or accepted > 20


@pytest.mark.parametrize("name", ["qwen35moe", "glm4moe"])
def test_heads_of_experts_change_no_text(name: str, folder: Path) -> None:
    path = write_model(name, folder / f"{name}.gguf", agreeing=True)
    with edgespec.load(path, drafters="mtp,trigram", **COMMON) as engine:
        assert equal_in_all_ways(engine, "mtp")[0] > 0


@pytest.mark.parametrize("drafters", ["none", "suffix-automaton,early-exit,trigram"])
def test_an_eagle_head_changes_no_text(llama: Path, eagle: Path, drafters: str) -> None:
    """Also after early exits, whose nodes have passed the first tap before the others."""
    options: dict[str, Any] = {"drafters": drafters, "draft_model": eagle, "threads": 2}
    with edgespec.load(llama, **options, **COMMON) as engine:
        drafted, accepted = equal_in_all_ways(engine, "eagle3")
        assert drafted > 0
        assert drafters != "none" or accepted > 10


@pytest.mark.parametrize(
    ("kv_type", "drafters"), [("f16", "none"), ("int8", "suffix-automaton,trigram")]
)
def test_an_assistant_changes_no_text(folder: Path, kv_type: str, drafters: str) -> None:
    """Also once the window has moved on, and when a conversation takes something back."""
    recipe = agreeing_model()
    model = write(recipe, folder / f"gemma-{kv_type}.gguf", breakage=AGREEING)
    head = write_assistant(folder / f"assistant-{kv_type}.gguf", agreeing_with=recipe)
    options: dict[str, Any] = {"drafters": drafters, "draft_model": head, "threads": 2}
    with edgespec.load(model, kv_type=kv_type, **options, **COMMON) as engine:
        drafted, accepted = equal_in_all_ways(engine, "assistant")
        assert drafted > 0
        assert drafters != "none" or accepted > 10
        held = engine.scheduler.target.allocated_bytes()  # type: ignore[attr-defined]
        assert held == engine.plan.footprint.exact


@pytest.mark.skipif(find_spec("safetensors") is None, reason="safetensors is not installed")
def test_a_published_eagle_head_changes_no_text(llama: Path, folder: Path) -> None:
    head = write_checkpoint(folder / "published", *agreeing_eagle3(llama))
    with edgespec.load(llama, drafters="none", draft_model=head, **COMMON) as engine:
        assert equal_in_all_ways(engine, "eagle3")[1] > 10


def test_replies_written_together_have_a_text_each(hybrid: Path) -> None:
    cases = [
        Case(PROMPT[: 30 - 7 * number], temperature, number, 32, ignore_eos=True)
        for number, temperature in enumerate((0.0, 0.8, 0.0))
    ]
    with edgespec.load(hybrid, drafters="none", **COMMON) as engine:
        expected = [case.plain(engine) for case in cases]
    with edgespec.load(hybrid, drafters="mtp,trigram", sequences=3, **COMMON) as engine:
        verify_everything(engine)
        replies = engine.generate_batch([case.request(engine) for case in cases])
        for one, other in zip(expected, replies, strict=True):
            assert same(one, other)
        assert sum(reply.stats.by_source["mtp"]["accepted"] for reply in replies) > 5


def test_a_head_is_planned_to_the_byte(hybrid: Path) -> None:
    with edgespec.load(hybrid, drafters="mtp", threads=2, sequences=2, **COMMON) as engine:
        cases = [Case(PROMPT, 0.0, seed, 40, ignore_eos=True) for seed in (1, 2)]
        engine.generate_batch([case.request(engine) for case in cases])
        held = engine.scheduler.target.allocated_bytes()  # type: ignore[attr-defined]
        planned = engine.plan.footprint.exact
        assert held.pop(STATES_ITEM) <= planned.pop(STATES_ITEM)  # which grow with the text
        assert held == planned
        assert held[HEAD_ITEM] > 0


def test_a_head_joins_by_itself_where_there_is_room(
    hybrid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HEAD_ITEM not in edgespec.plan(hybrid, **COMMON).footprint.names  # passes are short
    monkeypatch.setattr(model_drafters, "_JOIN_BYTES", 0)
    plan = edgespec.plan(hybrid, **COMMON)
    assert plan.footprint[HEAD_ITEM] > 0
    assert HEAD_ITEM not in edgespec.plan(hybrid, drafters="trigram", **COMMON).footprint.names
    tight = dict(COMMON, memory=plan.planned_bytes - plan.footprint[HEAD_ITEM] // 2)
    without = edgespec.plan(hybrid, **tight)
    assert HEAD_ITEM not in without.footprint.names
    assert without.context_length == plan.context_length
    assert any("does not fit" in reason for reason in without.reasons)


def test_options_that_mean_nothing(hybrid: Path, llama: Path, eagle: Path, folder: Path) -> None:
    def refused(said: str, path: Path, **options: Any) -> None:
        with pytest.raises(OptionError, match=said):
            edgespec.plan(path, **(COMMON | options))

    refused("no block that predicts", llama, drafters="mtp")
    refused("one head drafts at a time", llama, drafters="mtp", draft_model=eagle)
    refused("--draft-backend", llama, draft_model=eagle, draft_backend="llamacpp")
    refused("--overlap auto", llama, draft_model=eagle, overlap="on")
    other = write_gguf(folder / "other.gguf", dim=64)
    refused("cannot draft for", other, draft_model=eagle)
