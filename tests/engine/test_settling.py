"""Settling a slot fails at the end of a reply: its reader is told, and nobody else is harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.engine.engine import Engine
from edgespec.errors import BackendError

SHORT: dict[str, Any] = {"max_tokens": 6, "seed": 1, "ignore_eos": True}
LONG: dict[str, Any] = SHORT | {"max_tokens": 200}


@pytest.fixture(scope="module")
def pair(model: Path) -> Iterator[Engine]:
    """An engine that writes two replies at a time."""
    with edgespec.load(model, threads=1, sequences=2) as opened:
        yield opened


def fail_once(engine: Engine, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[str]:
    """Let drafters fail at the end of the next reply; the list tells when they have."""
    failed: list[str] = []
    for slot in engine.scheduler.take_slots(engine.plan.sequences):
        pause = slot.market.pause

        def failing(pause: Any = pause) -> None:
            if not failed:
                failed.append("once")
                raise error
            pause()

        monkeypatch.setattr(slot.market, "pause", failing)
    return failed


ERRORS = [MemoryError(), BackendError("no drafter remembers this")]


@pytest.mark.parametrize("error", ERRORS, ids=["memory", "backend"])
def test_a_reply_alone_is_whole_and_says_so(
    error: Exception, pair: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = pair.generate("hello", **SHORT).token_ids
    failed = fail_once(pair, monkeypatch, error)
    reply = pair.generate("hello", **SHORT)
    assert failed and reply.token_ids == expected
    assert "not remembered" in reply.stats.notes[0]
    again = pair.generate("hello", **SHORT)
    assert again.token_ids == expected and not again.stats.notes
    for slot in pair.scheduler.slots:
        assert slot.sequence.length <= max(len(slot.ids) - 1, 0)


@pytest.mark.usefixtures("step_by_step")
def test_who_shares_its_passes_goes_on(pair: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [pair.generate(text, **SHORT).token_ids for text in ("hello", "the cat")]
    fail_once(pair, monkeypatch, MemoryError())
    other = pair.stream("the cat", **SHORT)
    next(other)
    first = pair.generate("hello", **SHORT | {"max_tokens": 2})
    assert first.token_ids == expected[0][:2] and first.stats.notes
    for _ in other:
        pass
    assert other.reply.token_ids == expected[1] and not other.reply.stats.notes


@pytest.mark.usefixtures("step_by_step")
def test_all_end_where_one_is_interrupted(pair: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a reply is settled: nobody waits for another for ever."""
    streams = [pair.stream(text, **LONG) for text in ("hello", "the cat")]
    for stream in streams:
        next(stream)
    fail_once(pair, monkeypatch, KeyboardInterrupt())
    for stream in streams:
        stream.generation.cancelled = True
    with pytest.raises(KeyboardInterrupt):
        for _ in streams[0]:
            pass
    assert pair.line.num_running == 0
    assert all(stream.generation.stats is not None for stream in streams)


def test_a_coroutine_is_woken(pair: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pair.generate("hello", **SHORT).text
    fail_once(pair, monkeypatch, MemoryError())

    async def read() -> str:
        async with asyncio.timeout(60):
            return "".join([piece async for piece in pair.stream("hello", **SHORT)])

    assert asyncio.run(read()) == expected
