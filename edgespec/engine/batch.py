"""Several replies at once: as many as there is room for, the next as soon as one ends."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self

from edgespec.engine.generation import Generation
from edgespec.engine.line import Line
from edgespec.engine.reply import Reply
from edgespec.engine.request import Request
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.models.reasoning import Piece
from edgespec.verification.sampling import random_seed


class BatchStream:
    """An iterator over (index, piece) of replies that are written together.

    `replies` has them all once it has ended, in the order of the prompts.
    """

    def __init__(self, line: Line, generations: Sequence[Generation], most: int) -> None:
        """At most `most` of them are written at once."""
        self.generations = list(generations)
        """All replies as they stand."""
        self._line, self._most = line, most
        self._pieces: deque[tuple[int, Piece]] = deque()
        self._told: set[int] = set()
        """Replies whose end was told."""
        self._left = weakref.finalize(self, _leave, line, self.generations)
        self._left.atexit = False

    def __iter__(self) -> Iterator[tuple[int, Piece]]:
        return self

    def __next__(self) -> tuple[int, Piece]:
        while not self._pieces:
            self._pieces.extend(self.step())
        return self._pieces.popleft()

    def step(self) -> list[tuple[int, Piece]]:
        """Write on at all replies that there is room for: (index, piece) of each that grew or
        ended; raises StopIteration after the last, and what ended a reply where that was an error.
        """
        while True:
            found = self._news()
            if found:
                return found
            if len(self._told) == len(self.generations):
                raise StopIteration
            self._submit()
            self._line.advance(self._has_news)

    def _has_news(self) -> bool:
        return any(
            one.unread or (one.stats is not None and place not in self._told)
            for place, one in enumerate(self.generations)
        )

    def _news(self) -> list[tuple[int, Piece]]:
        found: list[tuple[int, Piece]] = []
        for place, one in enumerate(self.generations):
            ended = one.stats is not None
            pieces = list(one.unread)
            one.unread.clear()
            if ended and place not in self._told:
                self._told.add(place)
                if one.error is not None:
                    self.close()
                    raise one.error
                pieces = pieces or [Piece("")]
            found += [(place, piece) for piece in pieces]
        return found

    def _submit(self) -> None:
        """Let as many wait for their turn as may be written at once."""
        open_ = [one for one in self.generations if one.stats is None]
        num_submitted = sum(one.submitted for one in open_)
        for one in open_:
            if num_submitted < self._most and not one.submitted:
                self._line.submit(one)
                num_submitted += 1

    def cancel(self, index: int) -> None:
        """End one reply where it stands; the others go on."""
        self._line.cancel(self.generations[index])

    def close(self) -> None:
        """Stop writing; replies that have not ended are cancelled."""
        for one in self.generations:
            self._line.cancel(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def texts(self) -> list[str]:
        """What has been written so far of each reply."""
        return [one.text for one in self.generations]

    @property
    def ended(self) -> list[int]:
        """Indices of the replies that have ended, in this order."""
        ended = [place for place, one in enumerate(self.generations) if one.stats is not None]
        return sorted(ended, key=lambda place: self.generations[place].ended_s)

    def reply(self, index: int) -> Reply:
        """One reply; raises EdgeSpecError while it is still being written."""
        return self.generations[index].reply

    @property
    def replies(self) -> list[Reply]:
        """All replies; raises EdgeSpecError while one of them is still being written."""
        if any(one.stats is None for one in self.generations):
            raise EdgeSpecError("the batch is not finished; read the stream to its end or close it")
        return [one.reply for one in self.generations]


def _leave(line: Line, generations: Sequence[Generation]) -> None:
    """A batch was dropped: by whatever thread, perhaps in the middle of a step."""
    for one in generations:
        line.cancel(one, wait=False)


def check_most(most: int | None, planned: int) -> int:
    """How many replies to write at once; raises OptionError for more than planned."""
    if most is not None and not 1 <= most <= planned:
        raise OptionError(
            f"max_batch is {most}, and this engine was loaded for {planned} at once; load "
            f"with sequences={most}, or take 1 to {planned}"
        )
    return planned if most is None else most


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
