"""What several replies to one prompt are good for: the first that ends, or the answer most give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgespec.engine.batch import Batch, requests
from edgespec.engine.request import Reply

if TYPE_CHECKING:
    from edgespec.engine.engine import Engine

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


def first_finished(
    engine: Engine, prompt: str | Sequence[int], n: int, options: dict[str, Any]
) -> Reply:
    """See `Engine.first_finished`."""
    with _batch(engine, prompt, n, options) as (batch, steps):
        best, seen = (0, 0), 0
        for _ in steps:
            for index in batch.ended[seen:]:
                writing = batch.writings[index]
                if writing.finish_reason != "cancelled":
                    taken = len(writing.token_ids) + (writing.finish_reason == "stop")
                    best = min(best, (taken, index)) if best[0] else (taken, index)
            seen = len(batch.ended)
            for index in set(range(n)) - set(batch.ended):
                if best[0] and (len(batch.writings[index].token_ids) + 1, index) > best:
                    batch.cancel(index)
    return batch.writings[best[1]].reply


def majority(
    engine: Engine,
    prompt: str | Sequence[int],
    n: int,
    key: Callable[[str], Hashable],
    options: dict[str, Any],
) -> Vote:
    """See `Engine.majority`."""
    ballots: Ballots = defaultdict(list)
    with _batch(engine, prompt, n, options) as (batch, steps):
        seen = 0
        for _ in steps:
            for index in batch.ended[seen:]:
                answer = key(batch.writings[index].text)
                if answer is not None:
                    ballots[answer] = sorted([*ballots[answer], index])
            seen = len(batch.ended)
            if is_decided(ballots, sorted(set(range(n)) - set(batch.ended))):
                break
    ranked = sorted(ballots, key=lambda answer: _rank(ballots[answer]))
    winner = ranked[0] if ranked else None
    replies = [writing.reply for writing in batch.writings]
    return Vote(
        winner,
        replies[ballots[winner][0] if ranked else batch.ended[0]],
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


@contextmanager
def _batch(
    engine: Engine, prompt: str | Sequence[int], n: int, options: dict[str, Any]
) -> Iterator[tuple[Batch, Generator[list[tuple[int, str]], None, None]]]:
    """A batch of n replies to one prompt and its steps; what has not ended is cancelled after."""
    own = {name: options.pop(name, None) for name in ("seed", "seeds", "max_batch")}
    asked = requests(engine, [prompt], n, own["seed"], own["seeds"], options)
    batch = Batch(engine, asked, own["max_batch"])
    steps = engine._run_batch(batch)
    try:
        yield batch, steps
    finally:
        steps.close()
        batch.end()
