"""A full context: each policy drops what it says, and nothing depends on speculation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec import ContextOverflowError, OptionError
from edgespec.engine.context import NUM_SINKS, Sliding, Stop, policy
from edgespec.engine.engine import Engine

CONTEXT = 160
PROMPT = "the cat and the hat and the cat and the"


@pytest.fixture(scope="module")
def small(model: Path) -> Iterator[Engine]:
    """An engine whose context is soon full."""
    with edgespec.load(model, threads=1, context=CONTEXT) as opened:
        yield opened


def talk(engine: Engine, **options: Any) -> list[Any]:
    """Six turns of one conversation, and what became of each."""
    chat = engine.chat("Be kind.")
    found = []
    for turn in range(6):
        text = f"{turn}: and the cat and the hat"
        reply = chat.send(text, max_tokens=30, seed=turn, ignore_eos=True, **options)
        stats = reply.stats
        found.append(
            (reply.token_ids, reply.finish_reason, stats.dropped_turns, stats.dropped_tokens)
        )
        assert engine.scheduler.target.own.length <= CONTEXT
    assert chat.messages[0] == {"role": "system", "content": "Be kind."}
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", ["drop-turns", "sliding"])
def test_conversations_go_on_and_are_the_same_with_and_without_speculation(
    small: Engine, name: str, temperature: float
) -> None:
    found = [
        talk(small, on_overflow=name, temperature=temperature, speculation=speculation)
        for speculation in (True, False)
    ]
    assert found[0] == found[1]
    assert [reason for _, reason, _, _ in found[0]] == ["length"] * 6
    turns, tokens = (sum(row[place] for row in found[0]) for place in (2, 3))
    assert tokens > 0 and (turns > 0) == (name == "drop-turns")


def test_a_window_goes_on_as_a_prompt_of_what_is_left_would(small: Engine) -> None:
    """The naive way: write until the context is full, shorten, and start again with that."""
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    prompt = small.encode(PROMPT)
    stream = small.stream(prompt, max_tokens=200, on_overflow="sliding", **options)
    for _ in stream:
        pass
    seen, written, dropped = prompt, [], 0
    while len(written) < 200:
        part = small.generate(seen, max_tokens=200 - len(written), **options)
        written += part.token_ids
        seen = [*seen, *part.token_ids]
        if part.finish_reason == "context":
            window = Sliding()
            seen = window.shorten(seen, [], CONTEXT - 1) or []
            dropped += window.dropped_tokens
    assert stream.reply.token_ids == written
    assert stream.reply.stats.dropped_tokens == dropped >= CONTEXT
    assert stream.seen_ids == seen
    assert stream.seen_ids[:NUM_SINKS] == prompt[:NUM_SINKS]


def test_noise_goes_on_where_it_was(small: Engine) -> None:
    """Otherwise every window would draw with the noise of the one before."""
    prompt = small.encode(PROMPT)
    options: dict[str, Any] = {"temperature": 1.5, "top_p": 1.0, "top_k": 0, "seed": 5}
    stream = small.stream(
        prompt, max_tokens=2 * CONTEXT, on_overflow="sliding", ignore_eos=True, **options
    )
    for _ in stream:
        pass
    shift = stream.reply.stats.dropped_tokens
    assert stream.generation._shift == shift > 0
    kept = small.scheduler.target.own.length + 1 + shift
    assert kept == len(prompt) + 2 * CONTEXT


def test_turns_are_dropped_whole_and_a_reply_may_be_the_reason(small: Engine) -> None:
    chat = small.chat("Be kind.")
    first = chat.send("and the cat", max_tokens=20, seed=1, ignore_eos=True)
    assert first.stats.dropped_turns == 0
    second = chat.send(
        "and the hat", max_tokens=60, seed=1, ignore_eos=True, on_overflow="drop-turns"
    )
    assert second.finish_reason == "length" and second.stats.dropped_turns == 1
    assert [turn["content"] for turn in chat.messages] == ["Be kind.", "and the hat", second.text]
    third = chat.send("on", max_tokens=4, seed=1, ignore_eos=True, on_overflow="drop-turns")
    assert third.stats.cached_tokens > 0


def test_a_last_turn_that_is_too_long_is_refused_and_nothing_is_lost(small: Engine) -> None:
    chat = small.chat()
    chat.send("and the cat", max_tokens=4, seed=1, on_overflow="drop-turns")
    before = list(chat.messages)
    with pytest.raises(ContextOverflowError, match="--on-overflow"):
        chat.send("too long " * 100, on_overflow="drop-turns")
    assert chat.messages == before
    long = chat.send("too long " * 100, max_tokens=4, ignore_eos=True, on_overflow="sliding")
    assert long.stats.dropped_tokens > 100 and long.finish_reason == "length"


def test_stopping_is_what_happens_unless_something_else_is_asked_for(small: Engine) -> None:
    reply = small.generate(PROMPT, max_tokens=200, ignore_eos=True, seed=1)
    assert reply.finish_reason == "context" and reply.stats.dropped_tokens == 0
    single = small.generate(
        PROMPT, max_tokens=200, ignore_eos=True, seed=1, on_overflow="drop-turns"
    )
    assert single.token_ids == reply.token_ids  # one turn has none before it
    with pytest.raises(OptionError, match="stop, drop-turns, sliding"):
        small.stream(PROMPT, on_overflow="forget")


@pytest.mark.parametrize("room", [1, 2, 3, 7, 8, 63])
@pytest.mark.parametrize("num_sinks", [0, 4, 50])
def test_a_window_always_fits(room: int, num_sinks: int) -> None:
    ids = list(range(200))
    window = Sliding(num_sinks)
    kept = window.shorten(ids[:120], ids[120:], room)
    if kept is None:
        assert room < 2
        return
    assert len(kept) <= room and kept[-1] == 199
    assert window.dropped_tokens == 200 - len(kept)
    assert kept == sorted(kept)


def test_policies_by_name() -> None:
    assert isinstance(policy("stop"), Stop) and isinstance(policy("sliding"), Sliding)
