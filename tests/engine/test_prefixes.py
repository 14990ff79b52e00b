"""Saved prefixes: the same text as computing them, whatever becomes of the file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import BackendError, ContextOverflowError, KvFileError, OptionError
from edgespec.engine.engine import Engine
from edgespec.memory.kv import saved_prefixes
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.models.open_model import open_model
from tests.support.command_line import edgespec as command
from tests.support.gguf_models import CHATML, write_gguf

SHORT: dict[str, Any] = {"max_tokens": 6, "seed": 1, "ignore_eos": True}
SYSTEM = "You know every station of the line and like to tell of it. " * 8


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of this test's own."""
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(
        tmp_path_factory.mktemp("prefix") / "tiny.gguf", template=CHATML, context=1024
    )


@pytest.fixture
def engine(model: Path, data: Path) -> Iterator[Engine]:
    with edgespec.load(model, threads=1, context=1024) as opened:
        yield opened


def file_of(data: Path, name: str = "guide") -> Path:
    return data / "prefixes" / f"{name}.keys"


def fresh(engine: Engine) -> None:
    """Forget all texts."""
    engine.scheduler.idle.close()
    engine.scheduler.slots[0].sequence.truncate(0)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_it_is_not_computed_again(kv_type: str, model: Path, data: Path) -> None:
    """By another process as it were, and with the text of a computed one, turn by turn."""
    with edgespec.load(model, threads=1, context=1024, kv_type=kv_type) as engine:
        chat = engine.chat(SYSTEM)
        expected = [chat.send(text, **SHORT).token_ids for text in ("hello", "go on")]
        saved = engine.save_prefix("guide", SYSTEM)
        assert (saved.name, saved.text, saved.raw) == ("guide", SYSTEM, False)
        assert saved.size_bytes == file_of(data).stat().st_size
    with edgespec.load(model, threads=1, context=1024, kv_type=kv_type) as engine:
        chat = engine.chat(prefix="guide")
        first = chat.send("hello", **SHORT)
        assert first.stats.cached_tokens == len(saved.header.ids) > 256
        assert not first.stats.notes
        assert [first.token_ids, chat.send("go on", **SHORT).token_ids] == expected
        other = engine.chat(prefix="guide")
        assert other.send("hello", **SHORT).token_ids == first.token_ids
        arena = engine.scheduler.target.store.only
        assert arena is not None  # the whole blocks are one, in the file's pages
        num_whole = len(saved.header.ids) // 256
        tables = [text.sequence.state for text in engine.scheduler.idle.texts()]
        tables.append(engine.scheduler.slots[0].sequence.state)
        places = {int(table.addresses[0]) for table in tables}
        assert len(places) == 1 and num_whole >= 1
        assert not tables[0].contents(1)[0].flags.writeable


def test_a_text_can_begin_with_one(engine: Engine, data: Path) -> None:
    said = "Once upon a time there was a little engine. " * 12
    expected = engine.generate(said + "It", raw=True, **SHORT)
    saved = engine.save_prefix("story", said, raw=True)
    fresh(engine)
    reply = engine.generate("It", prefix="story", raw=True, **SHORT)
    assert reply.token_ids == expected.token_ids
    assert reply.stats.prompt_tokens == expected.stats.prompt_tokens
    assert reply.stats.cached_tokens >= len(saved.header.ids) - 2  # a token may span the seam
    fresh(engine)
    (batched,) = engine.generate_batch(["It"], prefix="story", raw=True, **SHORT)
    assert batched.token_ids == expected.token_ids
    assert batched.stats.cached_tokens == reply.stats.cached_tokens


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
def test_only_the_owner_reads_it(engine: Engine, data: Path) -> None:
    engine.save_prefix("guide", SYSTEM)
    assert file_of(data).stat().st_mode & 0o777 == 0o600
    assert file_of(data).parent.stat().st_mode & 0o777 == 0o700


def test_it_fills_the_whole_context(model: Path, data: Path) -> None:
    """Its file's pages are given up for what is written, and their last block is copied."""
    with edgespec.load(model, threads=1, context=512) as engine:
        ids = engine.encode(SYSTEM * 3, raw=True)[:505]
        said = engine.tokenizer.decode(ids[1:])
        saved = engine.save_prefix("long", said, raw=True)
        assert 500 < len(saved.header.ids) < 510
        expected = engine.generate(said + " ab", raw=True, **SHORT)
        fresh(engine)
        for _ in range(2):
            reply = engine.generate(" ab", prefix="long", raw=True, **SHORT)
            assert reply.token_ids == expected.token_ids
            assert reply.stats.cached_tokens > 500 and not reply.stats.notes
            engine.chat().send("hello", **SHORT)
        arena = engine.scheduler.target.store.only
        assert arena is not None and arena.num_blocks <= arena.most_blocks == 2
        with pytest.raises(ContextOverflowError, match="the context holds 512"):
            engine.save_prefix("longer", said + SYSTEM, raw=True)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1000] ^= 1
    path.write_bytes(raw)


def test_blocks_that_were_edited_are_computed_again(engine: Engine, data: Path) -> None:
    engine.save_prefix("guide", SYSTEM)
    expected = engine.chat(SYSTEM).send("hello", **SHORT)
    fresh(engine)
    flip(file_of(data))
    reply = engine.chat(prefix="guide").send("hello", **SHORT)
    assert reply.token_ids == expected.token_ids and reply.stats.cached_tokens == 0
    (note,) = reply.stats.notes
    assert "guide was computed again" in note and "checksum" in note and "\n" not in note
    engine.save_prefix("guide", SYSTEM)
    fresh(engine)
    assert engine.chat(prefix="guide").send("hello", **SHORT).stats.cached_tokens > 256


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: path.write_bytes(b""),
    "another file": lambda path: path.write_bytes(b"GGUF" * 2000),
    "gone": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_tells_nothing_is_refused(damage: str, engine: Engine, data: Path) -> None:
    engine.save_prefix("guide", SYSTEM)
    fresh(engine)
    chat = engine.chat(prefix="guide")
    DAMAGES[damage](file_of(data))
    for ask in (lambda: engine.chat(prefix="guide"), lambda: chat.send("hello", **SHORT)):
        with pytest.raises(KvFileError, match="guide"):
            ask()
    assert chat.messages[-1]["role"] == "system"
    assert engine.generate("still here?", **SHORT).token_ids


@pytest.mark.parametrize("what", ["model", "kv_type"])
def test_for_another_model_it_is_computed_again(
    what: str, engine: Engine, model: Path, data: Path, tmp_path: Path
) -> None:
    engine.save_prefix("guide", SYSTEM)
    path, kv_type = model, "int8"
    if what == "model":  # the same shape and norms, other weights
        with open_model(model) as file:
            info = file.tensors["blk.0.ffn_down.weight"]
        raw = np.fromfile(model, np.uint8)
        raw[info.offset : info.offset + info.size_bytes].view(np.float32)[:] *= 1.5
        path, kv_type = tmp_path / "tuned.gguf", "f16"
        raw.tofile(path)
    with edgespec.load(path, threads=1, context=1024, kv_type=kv_type) as other:
        expected = other.chat(SYSTEM).send("hello", **SHORT)
        fresh(other)
        reply = other.chat(prefix="guide").send("hello", **SHORT)
    assert reply.token_ids == expected.token_ids
    assert reply.stats.cached_tokens == 0 and "another" in reply.stats.notes[0]


def test_what_cannot_be_saved(engine: Engine, model: Path, data: Path) -> None:
    for name in ("", "a/b", "..", ".hidden", "ä", "x" * 65):
        with pytest.raises(OptionError, match="called"):
            engine.save_prefix(name, SYSTEM)
    with pytest.raises(OptionError, match="got both"):
        engine.chat("Be brief.", prefix="guide")
    engine.save_prefix("text", "Once upon", raw=True)
    with pytest.raises(OptionError, match="--raw"):
        engine.chat(prefix="text")
    with edgespec.load(model, backend="reference", context=256) as slow:
        with pytest.raises(BackendError, match="native"):
            slow.save_prefix("guide", SYSTEM)
        slow_reply = slow.generate("It", prefix="text", raw=True, **SHORT)
        assert "was computed" in slow_reply.stats.notes[0]
    (data / "prefixes" / "text.keys").unlink()
    (data / "prefixes").rmdir()
    (data / "prefixes").write_text("in the way")
    with pytest.raises(KvFileError, match="cannot be saved"):
        engine.save_prefix("guide", SYSTEM)


def test_the_command_line(model: Path, data: Path) -> None:
    where = {"EDGESPEC_DATA": str(data)}
    options = ("-m", model, "--context", 1024)
    assert command("prefix", "save", "guide", SYSTEM, *options, **where).code == 0
    told = json.loads(command("prefix", "list", "--json", **where).out)
    assert [(prefix["name"], prefix["text"]) for prefix in told] == [("guide", SYSTEM)]
    assert "guide: " in command("prefix", "list", **where).out
    reply = ("--seed", 1, "--max-tokens", 5, "--ignore-eos", "--json", "hello")
    used = json.loads(command("run", *options, "--prefix", "guide", *reply, **where).out)
    said = json.loads(command("run", *options, "--system", SYSTEM, *reply, **where).out)
    assert used["token_ids"] == said["token_ids"]
    assert used["stats"]["cached_tokens"] == told[0]["tokens"]
    turn = ("chat", *options, "--prefix", "guide", "--json", "--seed", 1, "--max-tokens", 5)
    talked = json.loads(command(*turn, stdin=b"hello\n", **where).out)
    assert talked["stats"]["cached_tokens"] == told[0]["tokens"]
    both = command("run", "--prefix", "guide", "--system", "x", "hello", **where)
    both.assert_refused(2, "--prefix", "--system")
    assert command("prefix", "remove", "guide", **where).code == 0
    command("prefix", "remove", "guide", **where).assert_refused(1, "no prefix is called guide")
    command("run", *options, "--prefix", "guide", "x", **where).assert_refused(1, "prefix save")
    assert saved_prefixes.saved() == []
