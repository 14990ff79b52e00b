"""Prompts on disk of models with windows and states: whole texts, the same replies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import edgespec
from edgespec.engine import kept_prompts
from edgespec.engine.context import policy
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.engine.reply_options import ReplyOptions
from edgespec.memory.kv import prompt_cache
from tests.support.random_models import MODELS, text, write

NAMES = ("gemma3", "qwen35", "lfm2")
HYBRIDS = ("qwen35", "lfm2")
SHORT = ReplyOptions(max_tokens=6, seed=1, ignore_eos=True)
LIMIT = "64MiB"
_FOLDER = TemporaryDirectory(prefix="edgespec-kept-")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, for prompts of any length."""
    monkeypatch.setattr(kept_prompts, "LEAST_S", 0.0)
    monkeypatch.setattr(prompt_cache, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(prompt_cache, "chosen_folder", lambda: tmp_path)
    return tmp_path / "prompts"


@cache
def _path(name: str) -> Path:
    recipe = MODELS[name]()
    recipe.context = 4096
    return write(recipe, Path(_FOLDER.name) / f"{name}.gguf", type="Q8_0")


def opened(name: str, prompt_cache: str = LIMIT, context: int = 2048) -> Engine:
    return edgespec.load(_path(name), threads=1, context=context, prompt_cache=prompt_cache)


def replied(engine: Engine, ids: Sequence[int]) -> Reply:
    stream = engine._turn([*ids], policy("stop"), None, SHORT)
    for _ in stream:
        pass
    return stream.reply


def ids_of(count: int, seed: int) -> list[int]:
    return text(MODELS["lfm2"](), count, seed)


@pytest.mark.parametrize("name", NAMES)
def test_another_engine_goes_on_with_it(name: str, folder: Path) -> None:
    """From where the reply ended, without computing any of it, windows having moved on."""
    first, more = ids_of(900, 1), ids_of(40, 2)
    with opened(name) as engine:
        reply = replied(engine, first)
        assert reply.stats.prompt_cache_tokens == 0 and len(list(folder.iterdir())) == 1
    then = [*first, *reply.token_ids, *more]
    with opened(name, "off") as engine:
        expected = replied(engine, then).token_ids
    with opened(name) as engine:
        stats = (found := replied(engine, then)).stats
    assert found.token_ids == expected and not stats.notes
    assert stats.prompt_cache_tokens == stats.cached_tokens == len(first) + SHORT.max_tokens - 1


@pytest.mark.parametrize("name", NAMES)
def test_an_edit_goes_back_to_a_checkpoint(name: str) -> None:
    """Exactly where a state was kept; a window that has moved on is of no use before its end."""
    first = ids_of(900, 1)
    edited = [*first[:300], *ids_of(100, 3)]
    with opened(name) as engine:
        replied(engine, first)
    with opened(name, "off") as engine:
        expected = replied(engine, edited).token_ids
    with opened(name) as engine:
        stats = (found := replied(engine, edited)).stats
        told, state = stats.prompt_cache_tokens, engine.scheduler.slots[0].sequence
        assert state.length == len(edited) + SHORT.max_tokens - 1
    assert found.token_ids == expected and not stats.notes
    assert told == (256 if name in HYBRIDS else 0)


@pytest.mark.parametrize("name", NAMES)
def test_damage_costs_time_only(name: str, folder: Path) -> None:
    first = ids_of(600, 1)
    with opened(name) as engine:
        then = [*first, *replied(engine, first).token_ids, 5]
    (path,) = folder.iterdir()
    raw = bytearray(path.read_bytes())
    raw[-100_000] ^= 1
    path.write_bytes(raw)
    with opened(name, "off") as engine:
        expected = replied(engine, then).token_ids
    with opened(name) as engine:
        stats = (found := replied(engine, then)).stats
    assert found.token_ids == expected and stats.prompt_cache_tokens == 0
    assert "checksum" in stats.notes[0] and not path.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_text_of_another_shape_is_not_begun_with(name: str, folder: Path) -> None:
    """What a file says of its windows and states is checked before anything reads it."""
    from dataclasses import replace

    with opened(name) as engine:
        replied(engine, ids_of(600, 1))
        store = engine.scheduler.target.store
        kept = engine.scheduler._prompts._cache
        assert store is not None and isinstance(kept, kept_prompts.PromptTexts)
        (one,) = kept.texts()
        assert store.returns_to(one.outline, 605) == 605
        late = replace(one.outline, firsts=tuple(first + 1024 for first in one.outline.firsts))
        fewer = replace(one.outline, firsts=one.outline.firsts[1:])
        assert store.returns_to(late, 605) == store.returns_to(fewer, 605) == 0


def test_the_limit_holds(folder: Path) -> None:
    """A text that is larger is not kept; of two that are not, the older goes."""
    with opened("gemma3") as engine:
        replied(engine, ids_of(300, 1))
    (one,) = folder.iterdir()
    size = one.stat().st_size
    with opened("gemma3", str(size + 20_000)) as engine:
        replied(engine, ids_of(300, 2))
        (other,) = folder.iterdir()
        assert other != one
        replied(engine, ids_of(1200, 3))
        assert list(folder.iterdir()) == [other]
