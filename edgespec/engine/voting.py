"""What several replies to one prompt are good for: the first that ends, or the answer most give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from edgespec.engine.batch import BatchStream
from edgespec.engine.reply import Reply

Ballots = dict[Hashable, list[int]]
"""Indices of the replies that gave an answer, the lowest first."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The answer that most replies gave; of several, that of the earliest reply."""

    answer: Hashable
    """None when all abstained."""
    reply: Reply
    """The first of the finished replies that gave it."""
    votes: dict[Hashable, int]
    """How often each answer was given before the result stood, the winner first."""
    replies: list[Reply]
    """All of them; those that were not needed any more are "cancelled"."""


def first_finished(stream: BatchStream) -> Reply:
    """The reply that takes the fewest tokens, the earlier among equals; see
    `Engine.first_finished`.
    """
    written = stream.generations
    best, seen = (0, 0), 0
    try:
        for _ in stream:
            ended = stream.ended
            for index in ended[seen:]:
                one = written[index]
                if one.finish_reason != "cancelled":
                    taken = len(one.token_ids) + (one.finish_reason == "stop")
                    best = min(best, (taken, index)) if best[0] else (taken, index)
            seen = len(ended)
            for index in set(range(len(written))) - set(ended):
                if best[0] and (len(written[index].token_ids) + 1, index) > best:
                    stream.cancel(index)
    finally:
        stream.close()
    return written[best[1]].reply


def majority(stream: BatchStream, key: Callable[[str], Hashable]) -> Vote:
    """The answer of most replies; see `Engine.majority`."""
    written, ballots, seen = stream.generations, defaultdict[Hashable, list[int]](list), 0
    try:
        for _ in stream:
            ended = stream.ended
            for index in ended[seen:]:
                answer = key(written[index].text)
                if answer is not None:
                    ballots[answer] = sorted([*ballots[answer], index])
            seen = len(ended)
            if is_decided(ballots, sorted(set(range(len(written))) - set(ended))):
                break
    finally:
        first = stream.ended[0] if stream.ended else 0
        stream.close()
    ranked = sorted(ballots, key=lambda answer: _rank(ballots[answer]))
    winner = ranked[0] if ranked else None
    replies = stream.replies
    return Vote(
        winner,
        replies[ballots[winner][0] if ranked else first],
        {answer: len(ballots[answer]) for answer in ranked},
        replies,
    )


def is_decided(ballots: Ballots, open_indices: Sequence[int]) -> bool:
    """Whether those who have not voted yet cannot change the winner, even if they all agree."""
    if not ballots or not open_indices:
        return not open_indices
    winner, *others = sorted(ballots.values(), key=_rank)
    best_case = [sorted([*voters, *open_indices]) for voters in ([], *others)]
    return all(_rank(winner) < _rank(voters) for voters in best_case)


def _rank(voters: Sequence[int]) -> tuple[int, int]:
    """Smaller is better: most votes first, then the earliest voter."""
    return -len(voters), voters[0]
