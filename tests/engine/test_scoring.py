"""How likely a text is: the numbers that a reply gives its own tokens."""

from __future__ import annotations

import pytest

from edgespec import ContextOverflowError, OptionError
from edgespec.engine.engine import Engine


def test_a_reply_scores_as_it_was_written(engine: Engine) -> None:
    """To the bit: a row's logits do not depend on what else the pass computes."""
    reply = engine.generate("hello", raw=True, max_tokens=40, seed=3, ignore_eos=True, logprobs=2)
    ids = [*engine.encode("hello", raw=True), *reply.token_ids]
    found = engine.score(ids, top=2)
    assert [one.token_id for one in found] == ids[1:]
    assert found[-len(reply.token_ids) :] == reply.logprobs


def test_a_score_leaves_the_engine_as_it_was(engine: Engine) -> None:
    chat = engine.chat()
    first = chat.send("hello", max_tokens=6, seed=1)
    engine.score("something else")
    again = engine.chat()
    assert again.send("hello", max_tokens=6, seed=1).token_ids == first.token_ids
    assert engine.score("something else") == engine.score("something else")


def test_what_cannot_be_scored(engine: Engine) -> None:
    assert engine.score([5]) == []
    with pytest.raises(ContextOverflowError):
        engine.score("word " * 4000)
    with pytest.raises(OptionError):
        engine.score("a", top=1000)
