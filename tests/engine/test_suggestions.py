"""Completions to choose from: what greedy decoding says after each of the likeliest tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgespec
from edgespec.engine.engine import Engine
from edgespec.engine.suggestions import Suggestion, completions, hopeless_lengths
from edgespec.errors import OptionError

PREFIX = "Once upon a time there was a"


@pytest.fixture(scope="module")
def engine(bundled_model: Path) -> Iterator[Engine]:
    with edgespec.load(bundled_model, threads=1, sequences=3) as opened:
        yield opened


@pytest.mark.parametrize("max_batch", [1, 3])
def test_each_is_what_the_model_says_alone(engine: Engine, max_batch: int) -> None:
    ids = engine.tokenizer.encode(PREFIX)
    found = engine.suggest(PREFIX, k=3, max_tokens=8, within=None, max_batch=max_batch)
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
    whole = {one.token_ids[0]: one for one in _whole(engine, k=2, max_tokens=200)}
    for one in engine.suggest(PREFIX, k=2, max_tokens=200, deadline_s=0.0):
        written = whole[one.token_ids[0]].token_ids
        assert len(one.token_ids) < len(written)
        assert one.token_ids == written[: len(one.token_ids)]
        assert not one.finished


@pytest.mark.parametrize("max_batch", [1, 3])
@pytest.mark.parametrize("within", [0.0, 1.0, 3.0])
def test_hopeless_ones_end_where_they_fall_behind(
    engine: Engine, within: float, max_batch: int
) -> None:
    """At the same token whatever was written first, and by the model's own probabilities."""
    whole = _whole(engine, k=3, max_tokens=16)
    sums = [_sums(engine, one.token_ids) for one in whole]
    kept = hopeless_lengths(sums, [False] * 3, within)
    expected = {
        tuple(one.token_ids[:count]): count == len(one.token_ids)
        for one, count in zip(whole, kept, strict=True)
    }
    found = engine.suggest(PREFIX, k=3, max_tokens=16, within=within, max_batch=max_batch)
    assert {tuple(one.token_ids): one.finished for one in found} == expected
    if within <= 1.0:
        assert not found[-1].finished
    assert [one.finished for one in found] == sorted((one.finished for one in found), reverse=True)
    for one in found:
        assert one.logprob == pytest.approx(_sums(engine, one.token_ids)[-1] / len(one.token_ids))


def test_hopeless_ones_take_no_more_passes(engine: Engine) -> None:
    ids = engine.tokenizer.encode(PREFIX)
    starts = [
        Suggestion("", one.token_ids[:1], _sums(engine, one.token_ids)[0], False)
        for one in _whole(engine, k=3, max_tokens=2)
    ]
    prompts = [[*ids, *start.token_ids] for start in starts]
    written = []
    for within in (None, 1.0):
        stream = engine.stream_batch(
            prompts, max_tokens=30, temperature=0.0, logprobs=0, speculation=False
        )
        found = completions(stream, starts, engine.tokenizer, within, None)
        written.append(sum(len(one.token_ids) for one in stream.generations))
        num_kept = sum(len(one.token_ids) - 1 for one in found)
        num_stopped = sum(not one.finished for one in found)
    assert num_kept <= written[1] <= num_kept + 2 * num_stopped  # a token tells that it goes on
    assert written[1] < written[0]


@given(data=st.data())
def test_what_is_hopeless_does_not_hang_on_the_order(data: st.DataObject) -> None:
    """Texts grow by any number of tokens in any order, and end where they are found hopeless."""
    drops = st.lists(st.sampled_from([0.1, 0.5, 2.0]), min_size=1, max_size=6)
    whole: list[list[float]] = []
    for losses in data.draw(st.lists(drops, min_size=1, max_size=4)):
        whole.append([-sum(losses[: place + 1]) for place in range(len(losses))])
    expected = hopeless_lengths(whole, [False] * len(whole), 1.0)
    known, is_open = [one[:1] for one in whole], [True] * len(whole)
    while any(is_open):
        index = data.draw(st.sampled_from([n for n, open_ in enumerate(is_open) if open_]))
        grown = len(known[index]) + data.draw(st.integers(1, 3))
        is_open[index] = grown <= len(whole[index])
        known[index] = whole[index][:grown]
        lengths = hopeless_lengths(known, is_open, 1.0)
        for place, length in enumerate(lengths):
            is_open[place] &= length == len(known[place])
    assert hopeless_lengths(known, is_open, 1.0) == expected


def test_what_cannot_be_suggested_is_refused(engine: Engine) -> None:
    with pytest.raises(OptionError, match="no fill-in-the-middle tokens"):
        engine.suggest(PREFIX, " king.")
    with pytest.raises(OptionError, match="1 to 100 completions"):
        engine.suggest(PREFIX, k=0)
    with pytest.raises(OptionError, match="at least 0 nats"):
        engine.suggest(PREFIX, within=-1.0)


def _whole(engine: Engine, **options: Any) -> list[Suggestion]:
    return engine.suggest(PREFIX, within=None, **options)


def _sums(engine: Engine, token_ids: list[int]) -> list[float]:
    """The log-probabilities of a completion's beginnings."""
    ids = [*engine.tokenizer.encode(PREFIX), *token_ids]
    scores = [one.logprob for one in engine.score(ids)][-len(token_ids) :]
    return [sum(scores[: place + 1]) for place in range(len(scores))]
