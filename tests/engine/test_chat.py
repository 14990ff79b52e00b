"""Conversations: what is remembered, what is prefilled, and what an interruption leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgespec
from edgespec import ContextOverflowError, TemplateError
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
