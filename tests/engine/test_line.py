"""One engine and many readers: threads, coroutines, and streams that are left."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec import EdgeSpecError
from edgespec.engine.burst import Burst
from edgespec.engine.engine import Engine
from edgespec.engine.reply_stream import Stream

PROMPTS = [f"the cat and the hat number {number} and the cat" for number in range(12)]
OPTIONS: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module", params=[1, 3])
def busy(model: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine for one reply at a time, and one for three."""
    with edgespec.load(model, threads=1, sequences=request.param) as opened:
        yield opened


def alone(engine: Engine) -> list[list[int]]:
    return [
        engine.generate(prompt, seed=place, **OPTIONS).token_ids
        for place, prompt in enumerate(PROMPTS)
    ]


def test_threads_get_what_they_would_get_alone(busy: Engine) -> None:
    expected = alone(busy)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = pool.map(
            lambda one: busy.generate(one[1], seed=one[0], **OPTIONS).token_ids, enumerate(PROMPTS)
        )
        assert list(found) == expected
    assert busy.line.num_running == busy.line.num_waiting == 0


def test_coroutines_get_what_they_would_get_alone(busy: Engine) -> None:
    expected = alone(busy)

    async def one(place: int) -> tuple[list[int], str]:
        pieces = []
        async with busy.stream(PROMPTS[place], seed=place, **OPTIONS) as stream:
            async for piece in stream:
                pieces.append(piece)
        return stream.reply.token_ids, "".join(pieces)

    async def all_of_them() -> list[tuple[list[int], str]]:
        return await asyncio.gather(*(one(place) for place in range(len(PROMPTS))))

    found = asyncio.run(all_of_them())
    assert [ids for ids, _ in found] == expected
    assert [text for _, text in found] == [busy.tokenizer.decode(ids) for ids in expected]


def test_streams_of_one_thread_take_turns(busy: Engine) -> None:
    """Read in any order, none waits for a reader that is not there."""
    expected = alone(busy)[:4]
    streams = [
        busy.stream(prompt, seed=place, **OPTIONS) for place, prompt in enumerate(PROMPTS[:4])
    ]
    for stream in streams:
        next(stream)
    for stream in reversed(streams):
        for _ in stream:
            pass
    assert [stream.reply.token_ids for stream in streams] == expected


def endless(engine: Engine) -> Stream:
    return engine.stream("the cat", seed=1, max_tokens=400, ignore_eos=True, raw=True)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.usefixtures("step_by_step")
def test_another_thread_cancels(busy: Engine) -> None:
    stream = endless(busy)
    next(stream)
    reading = threading.Thread(target=lambda: [time.sleep(0.001) for _ in stream])
    reading.start()
    stream.cancel()
    reading.join(60)
    assert not reading.is_alive()
    assert stream.reply.finish_reason == "cancelled"
    assert len(stream.reply.token_ids) < 400
    assert busy.generate("the cat", max_tokens=3).token_ids


@pytest.mark.usefixtures("step_by_step")
def test_a_reply_that_waits_can_be_cancelled(busy: Engine) -> None:
    streams = [endless(busy) for _ in range(busy.plan.sequences)]
    for stream in streams:
        next(stream)
    waiting = endless(busy)
    busy.line.submit(waiting.generation)
    assert busy.line.num_waiting == 1
    waiting.cancel()
    assert waiting.reply.finish_reason == "cancelled" and waiting.reply.token_ids == []
    assert list(waiting) == []
    for stream in streams:
        stream.close()


@pytest.mark.usefixtures("step_by_step")
def test_with_ends_the_reply(busy: Engine) -> None:
    with endless(busy) as stream:
        next(stream)
    assert stream.reply.finish_reason == "cancelled"
    assert busy.line.num_running == 0


@pytest.mark.usefixtures("step_by_step")
def test_a_coroutine_that_is_cancelled_ends_its_reply(busy: Engine) -> None:
    async def read(stream: Stream) -> None:
        async with stream:
            async for _ in stream:
                pass

    async def leave() -> Stream:
        stream = endless(busy)
        task = asyncio.create_task(read(stream))
        while not stream.token_ids:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stream

    stream = asyncio.run(leave())
    until(lambda: stream.generation.stats is not None)
    assert stream.reply.finish_reason == "cancelled"


@pytest.mark.usefixtures("step_by_step")
def test_a_stream_that_is_dropped_makes_room(busy: Engine) -> None:
    streams = [endless(busy) for _ in range(busy.plan.sequences)]
    for stream in streams:
        next(stream)
    del stream, streams
    gc.collect()
    assert busy.line.num_running == 0


def test_a_refused_prompt_is_its_own_readers_error(busy: Engine) -> None:
    expected = alone(busy)[0]
    stream = busy.stream(PROMPTS[0], seed=0, **OPTIONS)
    next(stream)
    with pytest.raises(edgespec.ContextOverflowError):
        busy.generate("word " * 2000)
    with pytest.raises(edgespec.KvFileError):
        busy.generate("word", prefix="no-such-prefix")
    for _ in stream:
        pass
    assert stream.reply.token_ids == expected


@pytest.mark.usefixtures("step_by_step")
def test_a_pass_that_fails_is_everybodys_error(
    busy: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [endless(busy) for _ in range(busy.plan.sequences)]
    for stream in streams:
        next(stream)

    def fail(*_: object) -> None:
        raise RuntimeError("the pass failed")

    monkeypatch.setattr(busy.scheduler.target, "_forward", fail)
    monkeypatch.setattr(Burst, "write", lambda *_: None)  # its passes call no Python
    for stream in streams:
        with pytest.raises(RuntimeError, match="the pass failed"):
            for _ in stream:
                pass
        assert stream.reply.finish_reason == "cancelled"
    monkeypatch.undo()
    assert busy.generate("the cat", max_tokens=3).token_ids


def test_calling_the_engine_from_its_own_step_is_refused(
    busy: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(*_: object) -> None:
        busy.generate("again")

    monkeypatch.setattr(busy.scheduler, "_progress", again)
    with pytest.raises(EdgeSpecError, match="inside one of its own steps"):
        busy.generate("something that was not there before, whatever it is")


def test_who_needs_a_slot_is_not_kept_waiting_by_readers(model: Path) -> None:
    """Coroutines are written for step after step; an embedding goes between two of them."""
    with edgespec.load(model, threads=1, sequences=2, context=512) as engine:
        expected = engine.embed("the cat")

        async def read() -> tuple[bool, int]:
            async with engine.stream(
                "the cat", seed=1, max_tokens=100_000, ignore_eos=True, on_overflow="sliding"
            ) as stream:
                await anext(stream)
                found = await asyncio.wait_for(asyncio.to_thread(engine.embed, "the cat"), 60)
                return bool((found == expected).all()), len(stream.token_ids)

        same, num_tokens = asyncio.run(read())
        assert same and 0 < num_tokens < 100_000


@pytest.mark.usefixtures("step_by_step")
def test_close_ends_what_other_threads_read(model: Path) -> None:
    engine = edgespec.load(model, threads=1, sequences=2)
    streams = [endless(engine) for _ in range(4)]
    seen: list[int] = []

    def read(stream: Stream) -> None:
        try:
            for _ in stream:
                seen.append(1)
                time.sleep(0.001)
        except EdgeSpecError as error:
            assert "closed" in str(error)
            told.append(stream)

    told: list[Stream] = []
    threads = [threading.Thread(target=read, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    until(lambda: len(seen) > 3)
    engine.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert told and all(stream.reply.finish_reason == "cancelled" for stream in told)
    with pytest.raises(EdgeSpecError, match="closed"):
        engine.generate("hello")
    engine.close()


def test_chats_of_several_threads_keep_their_own_turns(busy: Engine) -> None:
    def talk(place: int) -> list[str]:
        with busy.chat(f"You are number {place}.") as chat:
            for turn in range(3):
                chat.send(f"{PROMPTS[place]} {turn}", seed=turn, max_tokens=8)
            return [message["content"] for message in chat.messages]

    expected = [talk(place) for place in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(talk, range(4))) == expected


@pytest.mark.usefixtures("step_by_step")
def test_a_chat_writes_one_reply_at_a_time(busy: Engine) -> None:
    chat = busy.chat()
    stream = chat.stream("hello", max_tokens=100, ignore_eos=True)
    next(stream)
    with pytest.raises(EdgeSpecError, match="last reply of this conversation"):
        chat.send("and now?")
    stream.close()
    assert len(chat.messages) == 2
    chat.send("and now?", max_tokens=3)
    assert len(chat.messages) == 4


def test_a_chat_is_saved_and_goes_on(busy: Engine, tmp_path: Path) -> None:
    chat = busy.chat("Be brief.")
    chat.send("hello", seed=1, max_tokens=9)
    chat.save(tmp_path / "talk.json")
    expected = chat.send("and now?", seed=2, max_tokens=9)
    again = busy.load_chat(tmp_path / "talk.json")
    assert again.send("and now?", seed=2, max_tokens=9).text == expected.text
    assert again.messages == chat.messages
    (tmp_path / "other.json").write_text("{}")
    for name in ("other.json", "none.json"):
        with pytest.raises(edgespec.OptionError, match=f"{name}"):
            busy.load_chat(tmp_path / name)
