"""Models with states through the whole engine: drafts change nothing, and little is read twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.engine.engine import Engine
from edgespec.memory.plan.state_layout import CHECKPOINT_EVERY, STATES_ITEM
from tests.support.equality import verify_everything
from tests.support.random_models import MODELS, text, write

SENTENCE = "the cat sat on the mat, and the cat sat on the mat. "


@pytest.fixture(scope="module", params=["qwen35", "lfm2", "granitehybrid"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("hybrids") / f"{request.param}.gguf"
    write(MODELS[request.param](), path, type="Q8_0")
    with edgespec.load(path, backend="native", threads=2, context=900, memory="auto") as opened:
        verify_everything(opened)
        yield opened


ALONE: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "ignore_eos": True, "raw": True}


@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_drafts_do_not_change_the_text(engine: Engine, temperature: float) -> None:
    drafted = 0
    for seed in range(3):
        replies = [
            engine.generate(
                SENTENCE * (1 + 4 * seed),
                max_tokens=40,
                seed=seed,
                temperature=temperature,
                speculation=speculation,
                ignore_eos=True,
                raw=True,
            )
            for speculation in (True, False)
        ]
        assert replies[0].token_ids == replies[1].token_ids
        drafted += replies[0].stats.drafted
    assert engine.plan.max_nodes > 1
    assert drafted or temperature


def test_what_is_asked_again_is_not_read_again(engine: Engine) -> None:
    prompt = "again: " + SENTENCE * 3
    first, again = (engine.generate(prompt, **ALONE) for _ in range(2))
    assert again.token_ids == first.token_ids
    assert again.stats.cached_tokens == again.stats.prompt_tokens - 1


@pytest.mark.parametrize("name", ["qwen35", "lfm2", "granitehybrid"])
def test_an_edit_anywhere_in_a_long_chat(name: str, tmp_path: Path) -> None:
    """However long the chat is, and whatever was edited before."""
    recipe = MODELS[name]()
    recipe.context = 4096
    path, ids = write(recipe, tmp_path / "model.gguf", type="Q8_0"), text(recipe, 2100)
    kept: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    with edgespec.load(path, threads=2, context=4096, memory="auto") as engine:
        assert engine.plan.checkpoints == 16
        assert "at most 256 tokens are read again" in engine.plan.explain()
        engine.generate(ids, **kept)
        for place in (2047, 1300, 700, 257):
            end = [*ids[:place], *text(recipe, 40, place)]
            edited = engine.generate(end, **kept)
            assert 0 <= place - edited.stats.cached_tokens <= CHECKPOINT_EVERY
        target = engine.scheduler.target
        assert target.allocated_bytes()[STATES_ITEM] <= engine.plan.footprint[STATES_ITEM]
    with edgespec.load(path, threads=2, context=4096, memory="auto", drafters="none") as fresh:
        assert fresh.generate(end, **kept).token_ids == edited.token_ids


def test_an_edited_prompt_is_read_from_the_last_state_before(engine: Engine) -> None:
    start = "edited: " + SENTENCE * 13
    engine.generate(start + "One end.", **ALONE)
    edited = engine.generate(start + "Another!", **ALONE)
    num_common = edited.stats.prompt_tokens - len("Another!")
    assert num_common - edited.stats.cached_tokens <= CHECKPOINT_EVERY
    assert edited.stats.cached_tokens > 0
    engine.generate("something else", **ALONE)
    fresh = engine.generate(start + "Another!", **ALONE)
    assert fresh.token_ids == edited.token_ids
