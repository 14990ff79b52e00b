"""Threads that the system refuses, each once and then all: an error, and the next request works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec import BudgetError
from edgespec.engine.engine import Engine
from tests.support.gguf_models import CHATML, write_gguf

SHORT: dict[str, Any] = {"max_tokens": 8, "seed": 1, "ignore_eos": True}


@contextmanager
def threads(refused: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The system refuses those whose number it is told; yields the names of all that began."""
    names: list[str] = []
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        names.append(thread.name)
        if refused(len(names) - 1):
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield names


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads") / "tiny.gguf"
    return write_gguf(path, template=CHATML, type="Q8_0")


def opened(model: Path) -> Engine:
    return edgespec.load(model, draft_model=model, overlap="on", threads=2, context=256)


async def read(engine: Engine) -> list[int]:
    async with asyncio.timeout(60), engine.stream("hello", **SHORT) as stream:
        async for _ in stream:
            pass
    return stream.reply.token_ids


def work(model: Path) -> list[list[int]]:
    with opened(model) as engine:
        return [engine.generate("hello", **SHORT).token_ids, asyncio.run(read(engine))]


def test_each_is_refused_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = work(model)
    with threads(lambda number: False, monkeypatch) as names:
        assert work(model) == expected
    assert {"edgespec-1", "edgespec-watch", "edgespec-line"} <= set(names), names
    before, told = threading.active_count(), 0
    for refused in range(len(names)):
        with threads(lambda number, refused=refused: number == refused, monkeypatch):  # type: ignore[misc]
            try:
                assert work(model) == expected
            except BudgetError as error:
                assert "another thread" in str(error)
                told += 1
        assert threading.active_count() <= before, names[refused]
    assert told >= 2
    assert work(model) == expected


def test_an_open_engine_writes_without_any(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads writes it; only coroutines cannot be served."""
    with edgespec.load(model, threads=1, context=256) as engine:
        expected = engine.generate("hello", **SHORT).token_ids
        with threads(lambda number: True, monkeypatch):
            assert engine.generate("hello", **SHORT).token_ids == expected
            with pytest.raises(BudgetError, match="another thread"):
                asyncio.run(read(engine))
        assert engine.generate("hello", **SHORT).token_ids == expected
        assert asyncio.run(read(engine)) == expected
