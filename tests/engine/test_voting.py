"""The first of several replies, and the answer most of them give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgespec
from edgespec.engine.engine import Engine
from edgespec.engine.voting import is_decided
from edgespec.errors import OptionError

PROMPT = "Pick a number."


@pytest.fixture(scope="module")
def engine(bundled_model: Path) -> Iterator[Engine]:
    with edgespec.load(bundled_model, threads=1, sequences=4) as opened:
        yield opened


@pytest.mark.parametrize("max_batch", [1, 3, 4])
@pytest.mark.parametrize("speculation", [True, False])
def test_the_first_is_the_one_with_the_fewest_tokens(
    engine: Engine, max_batch: int, speculation: bool
) -> None:
    for seed in (1, 20):
        options: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": seed}
        alone = engine.generate_batch([PROMPT], n=6, **options)
        lengths = [len(reply.token_ids) + (reply.finish_reason == "stop") for reply in alone]
        assert len(set(lengths)) > 2
        found = engine.first_finished(
            PROMPT, 6, max_batch=max_batch, speculation=speculation, **options
        )
        assert found.token_ids == alone[lengths.index(min(lengths))].token_ids


@pytest.mark.parametrize("max_batch", [1, 4])
def test_of_those_that_finish_first_the_most_frequent_answer_wins(
    engine: Engine, max_batch: int
) -> None:
    """And of equally frequent ones the shortest reply's, whatever was faster."""
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": 4}
    alone = engine.generate_batch([PROMPT], n=7, **options)
    taken = [len(reply.token_ids) + (reply.finish_reason == "stop") for reply in alone]
    order = sorted(range(7), key=lambda index: (taken[index], index))[:4]
    answers = [alone[index].text.strip()[:1] for index in order]
    most = max(answers.count(answer) for answer in answers)
    expected = next(a for a in answers if answers.count(a) == most)
    vote = engine.majority(
        PROMPT, 7, key=lambda text: text.strip()[:1], first=4, max_batch=max_batch, **options
    )
    assert vote.answer == expected
    assert vote.reply.token_ids == alone[order[answers.index(expected)]].token_ids
    assert sum(vote.votes.values()) == 4


def test_a_deadline_ends_a_vote_with_those_that_have_ended(engine: Engine) -> None:
    for first in (None, 3):
        vote = engine.majority(
            PROMPT, 6, first=first, max_tokens=400, ignore_eos=True, seed=1, deadline_s=0.0
        )
        assert (vote.answer, vote.votes) == (None, {})
        assert {reply.finish_reason for reply in vote.replies} == {"cancelled"}
    vote = engine.majority(PROMPT, 3, max_tokens=2, seed=1, deadline_s=600.0)
    assert sum(vote.votes.values()) >= 2


def test_more_voters_than_replies_are_refused(engine: Engine) -> None:
    with pytest.raises(OptionError, match="1 to 3 of 3 replies can vote"):
        engine.majority(PROMPT, 3, first=4)


def test_the_majority_is_that_of_all_replies(engine: Engine) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 4}
    everyone = engine.generate_batch([PROMPT], n=9, **options)

    def first_letter(text: str) -> str | None:
        return text.strip()[:1] or None

    answers = [first_letter(reply.text) for reply in everyone]
    counts = Counter(filter(None, answers)).most_common()
    assert counts[0][1] > 1
    vote = engine.majority(PROMPT, 9, key=first_letter, **options)
    tied = [answer for answer, count in counts if count == counts[0][1]]
    assert vote.answer == min(tied, key=answers.index)
    assert first_letter(vote.reply.text) == vote.answer
    assert next(iter(vote.votes)) == vote.answer
    written = [reply for reply in vote.replies if reply.finish_reason != "cancelled"]
    assert sum(vote.votes.values()) <= len(written) <= len(vote.replies) == 9


def test_a_vote_that_is_decided_ends_the_rest(engine: Engine) -> None:
    """All agree, so the last of them are never begun."""
    vote = engine.majority(PROMPT, 20, max_tokens=12, temperature=0.0, seed=1, max_batch=2)
    assert len(vote.votes) == 1
    reasons = Counter(reply.finish_reason for reply in vote.replies)
    assert reasons["cancelled"] >= 8
    assert vote.reply is not None
    assert vote.reply.text == vote.replies[0].text


def test_all_may_abstain(engine: Engine) -> None:
    vote = engine.majority(PROMPT, 3, key=lambda _: None, max_tokens=2, seed=1)
    assert (vote.answer, vote.votes) == (None, {})
    assert vote.reply.text in [reply.text for reply in vote.replies]


def test_a_key_that_fails_leaves_the_engine_free(engine: Engine) -> None:
    def fail(text: str) -> str:
        raise ZeroDivisionError(text)

    with pytest.raises(ZeroDivisionError):
        engine.majority(PROMPT, 3, key=fail, max_tokens=4, seed=1)
    assert engine.generate(PROMPT, max_tokens=2, seed=1).finish_reason == "length"


@given(
    votes=st.lists(st.sampled_from("abc"), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_decided_means_that_nobody_can_change_it(votes: list[str], order: Any) -> None:
    """Against all ways the rest could vote, an answer that nobody gave yet among them."""
    indices = list(range(len(votes)))
    order.shuffle(indices)
    for num_in in range(len(votes) + 1):
        told, rest = indices[:num_in], sorted(indices[num_in:])
        ballots: dict[Any, list[int]] = {}
        for index in sorted(told):
            ballots.setdefault(votes[index], []).append(index)
        winners = set()
        for others in product("abcx", repeat=len(rest)):
            cast = dict(zip(rest, others, strict=True)) | {index: votes[index] for index in told}
            counts = Counter(cast.values())
            best = max(counts.values())
            winners.add(next(cast[index] for index in sorted(cast) if counts[cast[index]] == best))
        decided = is_decided(ballots, rest)
        assert not decided or len(winners) == 1
        if told:
            assert decided == (len(winners) == 1)
