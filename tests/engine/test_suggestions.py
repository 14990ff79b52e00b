"""Completions to choose from: what greedy decoding says after each of the likeliest tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from edgespec.engine.engine import Engine
from edgespec.errors import OptionError

PREFIX = "Once upon a time there was a"


@pytest.fixture(scope="module")
def engine(bundled_model: Path) -> Iterator[Engine]:
    with edgespec.load(bundled_model, threads=1, sequences=3) as opened:
        yield opened


@pytest.mark.parametrize("max_batch", [1, 3])
def test_each_is_what_the_model_says_alone(engine: Engine, max_batch: int) -> None:
    ids = engine.tokenizer.encode(PREFIX)
    found = engine.suggest(PREFIX, k=3, max_tokens=8, max_batch=max_batch)
    first = engine.generate(ids, max_tokens=1, temperature=0.0, logprobs=3, ignore_eos=True)
    assert first.logprobs is not None
    likeliest = {token for token, _ in first.logprobs[0].top}
    assert {one.token_ids[0] for one in found} == likeliest - set(engine.tokenizer.end_ids)
    for one in found:
        start = one.token_ids[0]
        alone = engine.generate([*ids, start], max_tokens=7, temperature=0.0, logprobs=0)
        assert one.token_ids == [start, *alone.token_ids]
        assert one.text == engine.tokenizer.decode(one.token_ids)
        assert one.finished
    assert [one.logprob for one in found] == sorted((one.logprob for one in found), reverse=True)


def test_at_the_deadline_they_are_what_is_written(engine: Engine) -> None:
    whole = {one.token_ids[0]: one for one in engine.suggest(PREFIX, k=2, max_tokens=200)}
    for one in engine.suggest(PREFIX, k=2, max_tokens=200, deadline_s=0.0):
        written = whole[one.token_ids[0]].token_ids
        assert len(one.token_ids) < len(written)
        assert one.token_ids == written[: len(one.token_ids)]
        assert not one.finished


def test_what_cannot_be_suggested_is_refused(engine: Engine) -> None:
    with pytest.raises(OptionError, match="no fill-in-the-middle tokens"):
        engine.suggest(PREFIX, " king.")
    with pytest.raises(OptionError, match="1 to 100 completions"):
        engine.suggest(PREFIX, k=0)
