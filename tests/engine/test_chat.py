"""Conversations: what is remembered, what is prefilled, and what an interruption leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import edgespec
from edgespec import ContextOverflowError, OptionError, TemplateError
from edgespec.engine.engine import Engine
from tests.support.gguf_models import write_gguf

SHORT = {"max_tokens": 6, "seed": 1, "ignore_eos": True}


def test_a_turn_prefills_only_what_is_new(engine: Engine) -> None:
    chat = engine.chat("Be brief.")
    first = chat.send("hello", **SHORT)
    assert first.stats.cached_tokens == 0
    second = chat.send("and then?", **SHORT)
    known = first.stats.prompt_tokens + first.stats.output_tokens
    assert second.stats.cached_tokens == known - 1  # the last token was never computed
    assert [turn["role"] for turn in chat.messages] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert chat.messages[2]["content"] == first.text


def test_a_conversation_is_what_its_turns_say(engine: Engine) -> None:
    """The cache changes nothing: the same turns from an empty one give the same reply."""
    replies = []
    for fresh in (False, True):
        chat = engine.chat()
        for text in ("hello", "and then?", "why?"):
            if fresh:
                engine.scheduler.target.own.truncate(0)
            last = chat.send(text, **SHORT)
        replies.append(last.token_ids)
    assert replies[0] == replies[1]


def test_two_chats_take_turns(engine: Engine) -> None:
    alone = engine.chat()
    expected = [alone.send(text, **SHORT).token_ids for text in ("hello", "go on")]
    one, other = engine.chat(), engine.chat()
    found = []
    for text in ("hello", "go on"):
        found.append(one.send(text, **SHORT).token_ids)
        other.send("something else " + text, **SHORT)
    assert found == expected


@pytest.mark.usefixtures("step_by_step")
@pytest.mark.parametrize("how", ["close", "throw"])
def test_an_interrupted_reply_stays_as_far_as_it_was_written(
    engine: Engine, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    chat = engine.chat()
    stream = chat.stream("hello", max_tokens=100, seed=1, ignore_eos=True)
    written = next(stream) + next(stream)
    if how == "throw":
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(engine.scheduler.watch, "check", interrupt)
            for _ in stream:
                pass
    else:
        stream.close()
    assert chat.messages[-1]["role"] == "assistant"
    assert chat.messages[-1]["content"].startswith(written)
    reply = chat.send("go on", **SHORT)
    assert reply.stats.cached_tokens > 0
    assert len(chat.messages) == 4


def test_a_turn_that_is_refused_leaves_the_conversation(engine: Engine) -> None:
    chat = engine.chat()
    chat.send("hello", **SHORT)
    before = list(chat.messages)
    with pytest.raises(ContextOverflowError):
        chat.send("too long " * 500, **SHORT)
    assert chat.messages == before
    chat.send("still there?", **SHORT)
    assert len(chat.messages) == 4


def test_a_stream_that_was_never_read_is_no_turn(engine: Engine) -> None:
    chat = engine.chat()
    chat.stream("hello").close()
    assert chat.messages == []


def test_reset_keeps_the_system_message(engine: Engine) -> None:
    with engine.chat("Be brief.") as chat:
        first = chat.send("hello", **SHORT)
        chat.reset()
        assert [turn["role"] for turn in chat.messages] == ["system"]
        assert chat.send("hello", **SHORT).token_ids == first.token_ids
    assert [turn["role"] for turn in chat.messages] == ["system"]


def test_a_model_without_a_template_holds_no_conversation(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "plain.gguf")
    with edgespec.load(path, threads=1) as engine, pytest.raises(TemplateError, match="raw"):
        engine.chat()


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_turn_taken_back_costs_only_what_is_new(engine: Engine, system: str | None) -> None:
    """The next turn has the tokens, and keys and values, of what is left."""
    chat = engine.chat(system)
    assert chat.undo() is None
    first = chat.send("hello", **SHORT)
    expected = chat.send("and then?", **SHORT)
    known = list(chat.messages)
    assert chat.undo() == "and then?"
    assert chat.messages == known[:-2]
    again = chat.send("and then?", **SHORT)
    assert again.token_ids == expected.token_ids
    assert again.stats.prompt_tokens == expected.stats.prompt_tokens
    assert again.stats.cached_tokens == again.stats.prompt_tokens - 1
    assert chat.messages == known
    assert [chat.undo(), chat.undo(), chat.undo()] == ["and then?", "hello", None]
    assert chat.system == system
    assert chat.send("hello", **SHORT).token_ids == first.token_ids


def test_another_system_message_is_read_by_the_next_turn(engine: Engine) -> None:
    chat = engine.chat()
    chat.send("hello", **SHORT)
    chat.system = "Be brief."
    asked = chat.send("and then?", **SHORT)
    other = engine.chat("Be brief.")
    other.messages += chat.messages[1:3]
    assert other.send("and then?", **SHORT).token_ids == asked.token_ids
    chat.system = None
    assert [turn["role"] for turn in chat.messages] == ["user", "assistant"] * 2


def test_a_saved_conversation_is_its_owners_alone(engine: Engine, tmp_path: Path) -> None:
    chat = engine.chat()
    chat.send("hello", **SHORT)
    chat.save(tmp_path / "talk.json")
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]
    if os.name == "posix":
        assert (tmp_path / "talk.json").stat().st_mode & 0o077 == 0


def test_tokens_that_say_something_else_are_not_believed(engine: Engine, tmp_path: Path) -> None:
    """A file may show one text and hold the tokens of another."""
    chat, path = engine.chat(), tmp_path / "talk.json"
    chat.send("hello", **SHORT)
    chat.save(path)
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({"edgespec_chat": 1, "messages": kept["messages"]}))
    expected = engine.load_chat(path).send("go on", **SHORT).token_ids
    for other in (kept["ids"][-2] ^ 1, 10**9):
        path.write_text(json.dumps(kept | {"ids": [*kept["ids"][:-1], other]}))
        assert engine.load_chat(path).send("go on", **SHORT).token_ids == expected


@pytest.mark.parametrize(
    "kept",
    [
        "{", "[]", "[" * 100_000, "\xff", "{}", '{"edgespec_chat": 2, "messages": []}',
        '{"edgespec_chat": 1}', '{"edgespec_chat": 1, "messages": [{"role": "user"}]}',
        '{"edgespec_chat": 1, "messages": [{"role": 1, "content": "a"}]}',
        '{"edgespec_chat": 1, "messages": [], "ids": [1.5]}',
        '{"edgespec_chat": 1, "messages": [], "ids": [true]}',
        '{"edgespec_chat": 1, "messages": [], "tools": {}}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_conversation_is_refused(
    kept: str, engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_bytes(kept.encode("latin-1"))
    with pytest.raises(OptionError, match=r"cannot go on with .*bad\.json"):
        engine.load_chat(tmp_path / "bad.json")
