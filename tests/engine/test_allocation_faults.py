"""Memory refused at every place that asks for some, one after the other: an error, nothing is lost,
and the next request works.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import BudgetError
from edgespec.engine.engine import Engine
from tests.support.gguf_models import CHATML, write_gguf

PACKAGE = str(Path(edgespec.__file__).parent)
ALLOCATORS = ("zeros", "empty", "ones", "full", "array", "asarray", "arange")
SHORT: dict[str, Any] = {"max_tokens": 6, "seed": 1, "ignore_eos": True}
Site = tuple[str, int]
"""File and line."""


@contextmanager
def allocations(refused: Site | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Site]]:
    """NumPy's allocators, which refuse memory to one line of the package, once; yields the lines
    that asked.
    """
    seen: set[Site] = set()

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*arguments: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            site = (frame.f_code.co_filename, frame.f_lineno)
            if site[0].startswith(PACKAGE) and site not in seen:
                seen.add(site)
                if site == refused:
                    raise MemoryError
            return real(*arguments, **options)

        return allocate

    with monkeypatch.context() as patch:
        for name in ALLOCATORS:
            patch.setattr(np, name, watched(getattr(np, name)))
        yield seen


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults") / "tiny.gguf"
    return write_gguf(path, template=CHATML, type="Q8_0")


def opened(model: Path) -> Engine:
    return edgespec.load(model, threads=1, context=512)


def sites_of(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[Site]:
    with allocations(None, monkeypatch) as seen:
        work()
    return sorted(seen)


def test_while_a_model_is_loaded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(model).close()  # what is compiled and measured once is there
    sites = sites_of(lambda: opened(model).close(), monkeypatch)
    files = {Path(file).name for file, _ in sites}
    assert {"scratch.py", "weights.py", "node_tables.py", "arena.py"} <= files, sites
    with opened(model) as engine:
        expected = engine.generate("hello", **SHORT).token_ids
    for site in sites:
        with (
            allocations(site, monkeypatch),
            pytest.raises(BudgetError, match="refused memory while loading"),
        ):
            opened(model).close()
    with opened(model) as engine:
        assert engine.generate("hello", **SHORT).token_ids == expected


def test_while_replies_are_written(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three conversations in an arena of two blocks: one is spilled, and comes back."""
    said = ("hello", "why?", "go on")
    with opened(model) as engine:

        def talk() -> list[list[int]]:
            engine.scheduler.idle.close()
            engine.scheduler.slots[0].sequence.truncate(0)
            engine.scheduler.target._tiles.forget()  # type: ignore[attr-defined]
            engine.scheduler.target._tiles_entered = 0  # type: ignore[attr-defined]
            chats = [engine.chat(f"{text} " * 20) for text in said]
            turns = [*zip(chats, said, strict=True), (chats[0], "and?")]
            replies = [chat.send(text, **SHORT) for chat, text in turns]
            spills = replies[-1].stats.restored_tokens
            return [*(reply.token_ids for reply in replies), [spills]]

        expected = talk()
        assert expected[-1] > [0]
        sites = sites_of(talk, monkeypatch)
        files = {Path(file).name for file, _ in sites}
        assert {"arena.py", "target.py", "idle_sequences.py"} <= files, sites
        num_refused = 0
        for site in sites:
            with allocations(site, monkeypatch) as seen:
                try:
                    talk()
                except BudgetError as error:
                    assert "refused memory" in str(error)
            num_refused += site in seen  # how often drafters are asked is a matter of time
            assert talk() == expected, site
        assert num_refused > 0.7 * len(sites)
