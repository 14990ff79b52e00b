"""Conversations that share an arena: spilled, restored, forgotten, and never another text."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.engine.chat import Chat
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.memory.plan.settings import KV_TYPES
from tests.support.gguf_models import CHATML, write_gguf

SHORT: dict[str, Any] = {"max_tokens": 6, "seed": 1, "ignore_eos": True}
LONG = "You know every station of the line and you like to tell of it. " * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("shelf") / "tiny.gguf", template=CHATML, context=2048)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spill folder of this test's own."""
    folder = tmp_path_factory.mktemp("spill")
    monkeypatch.setattr("edgespec.memory.kv.spill.cache_folder", lambda: folder)
    return folder


@pytest.fixture
def roomy(model: Path, cache: Path) -> Iterator[Engine]:
    """Eight blocks of 256 positions."""
    with edgespec.load(model, threads=1, context=2048) as engine:
        yield engine


@pytest.fixture
def tight(model: Path, cache: Path) -> Iterator[Engine]:
    """Two blocks: conversations of a block each."""
    with edgespec.load(model, threads=1, context=512) as engine:
        yield engine


def num_blocks(engine: Engine) -> int:
    arena = engine.scheduler.target.store.only
    assert arena is not None and arena.num_blocks <= arena.most_blocks
    return arena.num_blocks


def files(cache: Path) -> list[Path]:
    return sorted((cache / "spill").iterdir()) if (cache / "spill").exists() else []


def known(reply: Reply) -> int:
    """Positions that a reply leaves; its last token was never computed."""
    return reply.stats.prompt_tokens + reply.stats.output_tokens - 1


def talk(chats: dict[str, Chat], turns: list[tuple[str, str]]) -> dict[str, list[list[int]]]:
    """What each conversation is answered, turn by turn."""
    found: dict[str, list[list[int]]] = {name: [] for name in chats}
    for name, text in turns:
        found[name].append(chats[name].send(text, **SHORT).token_ids)
    return found


def test_each_keeps_its_own_while_others_talk(roomy: Engine, cache: Path) -> None:
    one, other = roomy.chat(), roomy.chat()
    first, second = one.send("hello", **SHORT), other.send("and you?", **SHORT)
    again, and_again = one.send("go on", **SHORT), other.send("go on", **SHORT)
    assert again.stats.cached_tokens == known(first)
    assert and_again.stats.cached_tokens == known(second)
    assert not again.stats.spilled_tokens and not files(cache)


def test_what_is_written_alone_keeps_its_own_too(roomy: Engine) -> None:
    chat = roomy.chat()
    first = chat.send("hello", **SHORT)
    alone = roomy.generate("once upon a time", raw=True, **SHORT)
    assert chat.send("go on", **SHORT).stats.cached_tokens == known(first)
    again = roomy.generate("once upon a time", raw=True, **SHORT)
    assert again.stats.cached_tokens == again.stats.prompt_tokens - 1
    assert again.token_ids == alone.token_ids


def test_a_system_message_is_kept_once(roomy: Engine) -> None:
    chats = [roomy.chat(LONG * 3) for _ in range(3)]
    first = chats[0].send("hello", **SHORT)
    assert first.stats.prompt_tokens > 2 * 256
    before = num_blocks(roomy)
    for chat in chats[1:]:
        assert chat.send("hi", **SHORT).stats.cached_tokens > 2 * 256
    assert num_blocks(roomy) == before + 2  # a block of its own for each
    expected = first.token_ids
    with roomy.chat(LONG * 3) as last:
        assert last.send("hello", **SHORT).token_ids == expected


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_the_text_depends_on_nobody_else(kv_type: str, model: Path, cache: Path) -> None:
    """Four conversations in any order, in an arena that holds two, against each alone."""
    order = random.Random(kv_type)
    turns = [(order.choice("abcd"), f"{order.choice(['why', 'go on'])} {i}") for i in range(24)]
    systems = {"a": None, "b": "Be brief.", "c": LONG, "d": LONG}
    with edgespec.load(model, threads=1, context=1024, kv_type=kv_type) as engine:
        together = talk({name: engine.chat(said) for name, said in systems.items()}, turns)
        num_blocks(engine)
    assert not files(cache)
    for name, said in systems.items():
        with edgespec.load(model, threads=1, context=1024, kv_type=kv_type) as engine:
            mine = [turn for turn in turns if turn[0] == name]
            assert talk({name: engine.chat(said)}, mine)[name] == together[name]


def test_the_one_idle_longest_is_spilled_and_comes_back(tight: Engine, cache: Path) -> None:
    chats = [tight.chat() for _ in range(3)]
    firsts = [chat.send(text, **SHORT) for chat, text in zip(chats, "abc", strict=True)]
    assert [reply.stats.spilled_tokens for reply in firsts] == [0, 0, known(firsts[0])]
    assert len(files(cache)) == 1
    if os.name == "posix":
        assert files(cache)[0].stat().st_mode & 0o777 == 0o600
        assert files(cache)[0].parent.stat().st_mode & 0o777 == 0o700
    again = chats[0].send("go on", **SHORT)
    assert again.stats.restored_tokens == again.stats.cached_tokens == known(firsts[0])
    assert again.stats.spilled_tokens == known(firsts[1]) and not again.stats.notes
    for chat in chats:
        chat.close()
    assert files(cache) == [] and num_blocks(tight) == 0


@pytest.mark.usefixtures("step_by_step")
def test_memory_that_is_short_is_taken_from_idle_ones(roomy: Engine, cache: Path) -> None:
    one, other = roomy.chat(), roomy.chat()
    first = one.send("good evening", **SHORT)
    stores = roomy.scheduler.slots[0].market.size_bytes
    stream = other.stream("hello", **SHORT)
    next(stream)
    assert roomy.scheduler._shrink() > 0
    assert roomy.scheduler.slots[0].market.size_bytes == stores  # what was freed was enough
    assert num_blocks(roomy) == 1
    for _ in stream:
        pass
    assert stream.reply.stats.spilled_tokens == known(first)
    assert one.send("go on", **SHORT).stats.restored_tokens == known(first)


def test_nobody_holds_what_has_ended(tight: Engine, cache: Path) -> None:
    """Closed while another talks, closed where it stands, or simply not held any more."""
    chats = [tight.chat() for _ in range(3)]
    for chat, text in zip(chats, "abc", strict=True):
        chat.send(text, **SHORT)
    assert len(files(cache)) == 1
    stream = chats[2].stream("go on", **SHORT)
    next(stream)
    chats[0].close()
    chats[1].close()
    stream.close()
    assert files(cache) == [] and num_blocks(tight) == 1
    del chat, stream
    chats.clear()
    gc.collect()
    assert num_blocks(tight) == 0
    assert tight.generate("still here?", **SHORT).token_ids


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1000] ^= 1
    path.write_bytes(raw)


def forge(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4000])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": cut, "flipped": flip, "header only": forge, "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_costs_time_alone(damage: str, tight: Engine, cache: Path) -> None:
    with tight.chat() as alone:
        expected = [alone.send(text, **SHORT).token_ids for text in ("hello", "go on", "and?")]
    chats = [tight.chat() for _ in range(3)]
    found = [chats[0].send("hello", **SHORT).token_ids]
    for chat, text in zip(chats[1:], "bc", strict=True):
        chat.send(text, **SHORT)
    (spilled,) = files(cache)
    DAMAGES[damage](spilled)
    reply = chats[0].send("go on", **SHORT)
    found.append(reply.token_ids)
    assert reply.stats.restored_tokens == 0
    (note,) = reply.stats.notes
    assert "computed again" in note and spilled.name in note and "\n" not in note
    last = chats[0].send("and?", **SHORT)
    assert [*found, last.token_ids] == expected
    assert last.stats.cached_tokens == known(reply) and not last.stats.notes
    assert not spilled.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
def test_a_file_that_cannot_be_written_is_forgotten(tight: Engine, cache: Path) -> None:
    """As on a full disk: the write that reaches the limit fails half-way."""
    import resource
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    chats = [tight.chat() for _ in range(3)]
    with tight.chat() as alone:
        expected = [alone.send(text, **SHORT).token_ids for text in ("hello", "go on")]
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        texts = ("hello", "b", "c")
        replies = [chat.send(text, **SHORT) for chat, text in zip(chats, texts, strict=True)]
        again = chats[0].send("go on", **SHORT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert replies[2].stats.forgotten_tokens == known(replies[0])
    assert replies[2].stats.spilled_tokens == 0
    assert "could not be spilled" in replies[2].stats.notes[0]
    assert [replies[0].token_ids, again.token_ids] == expected
    assert files(cache) == []
    assert chats[1].send("go on", **SHORT).stats.restored_tokens == 0
    assert chats[2].send("go on", **SHORT).stats.notes == ()


def test_where_nothing_can_be_written_texts_are_forgotten(tight: Engine, cache: Path) -> None:
    (cache / "spill").write_text("in the way")
    chats = [tight.chat() for _ in range(3)]
    replies = [chat.send(text, **SHORT) for chat, text in zip(chats, "abc", strict=True)]
    assert replies[2].stats.forgotten_tokens > 0 and replies[2].stats.notes
    assert chats[0].send("go on", **SHORT).finish_reason == "length"


def test_spilling_can_be_forbidden(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_SPILL", "0")
    with edgespec.load(model, threads=1, context=512) as engine:
        chats = [engine.chat() for _ in range(3)]
        replies = [chat.send(text, **SHORT) for chat, text in zip(chats, "abc", strict=True)]
        assert replies[2].stats.forgotten_tokens > 0 and not replies[2].stats.notes
        assert files(cache) == []


def test_batches_and_conversations_take_turns(model: Path, cache: Path) -> None:
    with edgespec.load(model, threads=1, context=512, sequences=2) as engine:
        with engine.chat() as alone:
            expected = [alone.send(text, **SHORT).token_ids for text in ("hello", "go on")]
        prompts = ["one " * 140, "two " * 140]
        batch = engine.generate_batch(prompts, raw=True, **SHORT)
        chat = engine.chat()
        found = [chat.send("hello", **SHORT).token_ids]
        again = engine.generate_batch(prompts, raw=True, **SHORT)
        found.append(chat.send("go on", **SHORT).token_ids)
        num_blocks(engine)
    assert found == expected
    assert [reply.token_ids for reply in again] == [reply.token_ids for reply in batch]
