"""Ctrl-C while a reply is written, as a signal to this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

import edgespec
from edgespec.engine.engine import Engine
from edgespec.terminal.chat.stopping import stopping


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with edgespec.load(context=512, max_nodes=4) as engine:
        yield engine


def test_the_reply_ends_after_its_step(engine: Engine) -> None:
    before = signal.getsignal(signal.SIGINT)
    stream = engine.stream("Tell me a long story.", max_tokens=300, seed=1, ignore_eos=True)
    pieces = []
    with pytest.raises(KeyboardInterrupt), stopping(stream):
        for piece in stream:
            pieces.append(piece)
            if len(pieces) == 3:
                signal.raise_signal(signal.SIGINT)
    assert stream.reply.finish_reason == "cancelled"
    assert stream.reply.text == "".join(pieces)
    assert 3 <= len(stream.token_ids) < 100
    assert signal.getsignal(signal.SIGINT) is before
    assert engine.generate("Hello", max_tokens=4, seed=1).text, "the engine goes on"


def test_it_is_raised_at_once_before_the_first_token_and_the_second_time(engine: Engine) -> None:
    stream = engine.stream("Hello", max_tokens=300, seed=1)
    with pytest.raises(KeyboardInterrupt), stopping(stream):
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it was not raised")
    next(stream)
    with pytest.raises(KeyboardInterrupt), stopping(stream):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    stream.close()


def test_without_ctrl_c_nothing_happens(engine: Engine) -> None:
    stream = engine.stream("Hello", max_tokens=4, seed=1)
    with stopping(stream):
        text = "".join(stream)
    assert stream.reply.text == text
