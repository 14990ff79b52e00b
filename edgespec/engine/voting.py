"""What several replies to one prompt are good for: the first that ends, or the answer most give."""

from __future__ import annotations

import time
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from edgespec.engine.batch import BatchStream
from edgespec.engine.reply import Reply
from edgespec.system.records import dataclass

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
    order = shortest(stream, 1, None)
    return stream.generations[order[0] if order else 0].reply


def shortest(stream: BatchStream, most: int, deadline_s: float | None) -> list[int]:
    """Indices of the replies that take the fewest tokens, shortest first, the earlier among equals;
    the others end as soon as they are longer.
    """
    written, ranked, seen = stream.generations, list[tuple[int, int]](), 0
    try:
        for _ in until(deadline_s, stream):
            ended = stream.ended
            for index in ended[seen:]:
                one = written[index]
                if one.finish_reason != "cancelled":
                    insort(ranked, (len(one.token_ids) + (one.finish_reason == "stop"), index))
            seen = len(ended)
            del ranked[most:]
            for index in set(range(len(written))) - set(ended):
                taken = len(written[index].token_ids) + 1
                if len(ranked) == most and (taken, index) > ranked[-1]:
                    stream.cancel(index)
    finally:
        stream.close()
    return [index for _, index in ranked]


def until(deadline_s: float | None, stream: BatchStream) -> Iterator[object]:
    """What a stream yields, to its end or until so many seconds have passed."""
    start = time.perf_counter()
    for piece in stream:
        yield piece
        if deadline_s is not None and time.perf_counter() - start >= deadline_s:
            return


def vote_of_shortest(
    stream: BatchStream, key: Callable[[str], Hashable], most: int, deadline_s: float | None
) -> Vote:
    """The answer of most of the `most` shortest replies, of several the shortest's; see
    `Engine.majority`.
    """
    order = shortest(stream, most, deadline_s)
    ballots: Ballots = {}
    for rank, index in enumerate(order):
        answer = key(stream.generations[index].text)
        if answer is not None:
            ballots.setdefault(answer, []).append(rank)
    return _vote(stream, {a: [order[r] for r in ranks] for a, ranks in ballots.items()}, order)


def majority(
    stream: BatchStream, key: Callable[[str], Hashable], deadline_s: float | None = None
) -> Vote:
    """The answer of most replies; see `Engine.majority`."""
    written, ballots, seen = stream.generations, defaultdict[Hashable, list[int]](list), 0
    try:
        for _ in until(deadline_s, stream):
            ended = stream.ended
            for index in ended[seen:]:
                answer = key(written[index].text)
                if answer is not None:
                    ballots[answer] = sorted([*ballots[answer], index])
            seen = len(ended)
            if is_decided(ballots, sorted(set(range(len(written))) - set(ended))):
                break
    finally:
        order = stream.ended[:1]
        stream.close()
    ranked = sorted(ballots, key=lambda answer: _rank(ballots[answer]))
    return _vote(stream, {answer: ballots[answer] for answer in ranked}, order)


def _vote(stream: BatchStream, ballots: Ballots, order: Sequence[int]) -> Vote:
    """Of ballots in order of preference; without any, the first of `order` is the reply."""
    ranked = sorted(ballots, key=lambda answer: -len(ballots[answer]))
    winner = ranked[0] if ranked else None
    replies = stream.replies
    first = order[0] if order else 0
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
