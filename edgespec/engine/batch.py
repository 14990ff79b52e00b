"""Several replies at once: as many as there is room for, the next as soon as one ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from edgespec.engine.generation import Generation
from edgespec.engine.reply import Reply
from edgespec.engine.request import Request
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.models.reasoning import Piece
from edgespec.verification.sampling import random_seed


class Batch:
    """Who waits, who is written and who has ended; the scheduler moves them."""

    def __init__(self, generations: Sequence[Generation], most: int = 1) -> None:
        self.generations = list(generations)
        self.most = most
        """Replies that are written at once, at most."""
        self.waiting = deque(self.generations)
        self.running: list[Generation] = []
        self.ended: list[Generation] = []
        """In the order in which they ended."""

    @property
    def is_over(self) -> bool:
        """Whether all replies have ended."""
        return not self.waiting and not self.running

    @property
    def open(self) -> list[Generation]:
        """Those that have not ended."""
        return [*self.running, *self.waiting]


Steps = Generator[list[tuple[Generation, Piece]], None, None]
"""The generations of each step, and the pieces of text that it brought them."""


class BatchStream:
    """An iterator over (index, piece) of replies that are written together.

    `replies` has them all once it has ended, in the order of the prompts.
    """

    def __init__(
        self, batch: Batch, steps: Steps, end: Callable[[Batch, Generation], None]
    ) -> None:
        """`end` ends a generation where it stands."""
        self._batch, self._steps, self._end = batch, steps, end
        self._pieces: deque[tuple[int, Piece]] = deque()
        self._places = {id(one): place for place, one in enumerate(batch.generations)}

    def __iter__(self) -> Iterator[tuple[int, Piece]]:
        return self

    def __next__(self) -> tuple[int, Piece]:
        while not self._pieces:
            self._pieces.extend(self.step())
        return self._pieces.popleft()

    def step(self) -> list[tuple[int, Piece]]:
        """Write on at all replies that there is room for: (index, piece) of each that grew or
        ended; raises StopIteration after the last.
        """
        return [
            (self._places[id(one)], piece)
            for one, piece in next(self._steps)
            if piece or one.is_over
        ]

    def cancel(self, index: int) -> None:
        """End one reply where it stands; the others go on."""
        self._end(self._batch, self._batch.generations[index])

    def close(self) -> None:
        """Stop writing; replies that have not ended are cancelled."""
        self._steps.close()
        for one in self._batch.open:
            self._end(self._batch, one)

    @property
    def generations(self) -> list[Generation]:
        """All replies as they stand."""
        return self._batch.generations

    @property
    def texts(self) -> list[str]:
        """What has been written so far of each reply."""
        return [one.text for one in self._batch.generations]

    @property
    def ended(self) -> list[int]:
        """Indices of the replies that have ended, in this order."""
        return [self._places[id(one)] for one in self._batch.ended]

    def reply(self, index: int) -> Reply:
        """One reply; raises EdgeSpecError while it is still being written."""
        return self._batch.generations[index].reply

    @property
    def replies(self) -> list[Reply]:
        """All replies; raises EdgeSpecError while one of them is still being written."""
        if not self._batch.is_over:
            raise EdgeSpecError("the batch is not finished; read the stream to its end or close it")
        return [one.reply for one in self._batch.generations]


def requests(
    make: Callable[[str | Sequence[int]], Request],
    prompts: Sequence[str | Sequence[int] | Request],
    n: int,
    seed: int | None,
    seeds: Sequence[int] | None,
) -> list[Request]:
    """A request for each reply: n to each prompt, which differ in their seeds.

    `make` is what makes a request of a prompt; one that is a request already counts on from its own
    seed. Raises OptionError for numbers that mean nothing.
    """
    if n < 1:
        raise OptionError(f"n is {n}, but a prompt gets at least 1 reply")
    if isinstance(prompts, str):
        raise OptionError("a batch takes a list of prompts, and one text was given; put it in [ ]")
    if seeds is None:
        first = random_seed() if seed is None else seed
        seeds = range(first, first + n)
    elif seed is not None or len(seeds) != n:
        raise OptionError(f"give {n} seeds, one for each of a prompt's replies, or a seed")
    found = []
    for prompt in prompts:
        if isinstance(prompt, Request):
            own = prompt.sampling.seed
            found += [_drawn(prompt, own + sample) for sample in range(n)]
        else:
            request = make(prompt)
            found += [_drawn(request, drawn) for drawn in seeds]
    return found


def _drawn(request: Request, seed: int) -> Request:
    return replace(request, sampling=replace(request.sampling, seed=seed))
