"""Several replies at once: as many as there is room for, the next as soon as one ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgespec.control.statistics import ReplyStats
from edgespec.engine.context import policy
from edgespec.engine.decode import decode_together
from edgespec.engine.generation import Writer, Writing, fit_prompt, stats
from edgespec.engine.request import Reply, Request
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.verification.sampling import random_seed

if TYPE_CHECKING:
    from edgespec.engine.engine import Engine, Prompts


def requests(
    engine: Engine,
    prompts: Prompts,
    n: int,
    seed: int | None,
    seeds: Sequence[int] | None,
    options: dict[str, Any],
) -> list[Request]:
    """A request for each reply: n to each prompt, which differ in their seeds."""
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
            asked = engine.request(prompt, **options)
            found += [_drawn(asked, each) for each in seeds]
    return found


def _drawn(request: Request, seed: int) -> Request:
    return replace(request, sampling=replace(request.sampling, seed=seed))


class Batch:
    """Replies that share passes over the weights; each is written as if it were alone.

    Per step: whoever waits gets a free session, whose text and neighbours' texts are searched for
    the prompt's beginning; then all step together.
    """

    def __init__(
        self,
        engine: Engine,
        asked: Sequence[Request],
        max_batch: int | None,
        on_overflow: str = "stop",
    ) -> None:
        planned = engine.plan.sequences
        self.max_batch = planned if max_batch is None else max_batch
        if not 1 <= self.max_batch <= planned:
            raise OptionError(
                f"max_batch is {max_batch}, and this engine was loaded for {planned} at once; load "
                f"with sequences={max_batch}, or take 1 to {planned}"
            )
        self._engine = engine
        self.writings = [Writing(request, policy(on_overflow)) for request in asked]
        for writing in self.writings:
            fit_prompt(writing, engine.plan, engine.file.spec.context_length)
        self.ended: list[int] = []
        """Indices of the replies that have ended, in this order."""
        self._waiting = deque(range(len(asked)))
        self._running: dict[int, Writer] = {}

    def is_over(self) -> bool:
        """Whether all replies have ended."""
        return not self._waiting and not self._running

    def step(self) -> list[tuple[int, str]]:
        """Write on at all replies that there is room for; returns (index, piece) of each that grew.

        A reply that ends is told of even if its last step brought no text.
        """
        self._admit()
        writers = list(self._running.items())
        runs = [writer.run for _, writer in writers]
        pieces = []
        for (index, writer), new in zip(
            writers, decode_together(runs, self._engine.allotment), strict=True
        ):
            piece = writer.push(new)
            if writer.run.is_over() and not writer.make_room():
                piece += writer.flush()
                self._finish(index)
            if piece or index not in self._running:
                pieces.append((index, piece))
        return pieces

    def cancel(self, index: int) -> None:
        """End a reply where it stands; one that has ended stays as it is."""
        if index in self._running:
            self._finish(index)
        elif index in self._waiting:
            self._waiting.remove(index)
            writing = self.writings[index]
            writing.stats = stats(writing.request, self._engine.plan, ReplyStats())
            self.ended.append(index)

    def end(self) -> None:
        """Cancel what has not ended."""
        for index in (*self._running, *self._waiting):
            self.cancel(index)

    def _admit(self) -> None:
        lanes = self._engine.lanes(min(self.max_batch, len(self._waiting) + len(self._running)))
        busy = [writer.run.session for writer in self._running.values()]
        free = [lane for lane in lanes if not any(lane is other for other in busy)]
        while self._waiting and free:
            index = self._waiting.popleft()
            writing = self.writings[index]
            session = max(free, key=lambda lane: lane.common(writing.seen_ids))
            try:
                self._running[index] = self._engine.writer(writing, session)
            except BaseException:
                self._waiting.appendleft(index)
                raise
            free = [lane for lane in free if lane is not session]

    def _finish(self, index: int) -> None:
        writer = self._running.pop(index)
        writer.run.session.settle()
        writer.end()
        self.ended.append(index)


class BatchStream:
    """An iterator over (index, piece) of replies that are written together.

    `replies` has them all once it has ended, in the order of the prompts.
    """

    def __init__(self, engine: Engine, batch: Batch) -> None:
        self._batch = batch
        self._steps = engine._run_batch(batch)
        self._pieces: deque[tuple[int, str]] = deque()

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self

    def __next__(self) -> tuple[int, str]:
        while not self._pieces:
            self._pieces.extend(next(self._steps))
        return self._pieces.popleft()

    def cancel(self, index: int) -> None:
        """End one reply where it stands; the others go on."""
        self._batch.cancel(index)

    def close(self) -> None:
        """Stop writing; replies that have not ended are cancelled."""
        self._steps.close()
        self._batch.end()

    @property
    def texts(self) -> list[str]:
        """What has been written so far of each reply."""
        return [writing.text for writing in self._batch.writings]

    @property
    def ended(self) -> list[int]:
        """Indices of the replies that have ended, in this order."""
        return list(self._batch.ended)

    def reply(self, index: int) -> Reply:
        """One reply; raises EdgeSpecError while it is still being written."""
        return self._batch.writings[index].reply

    @property
    def replies(self) -> list[Reply]:
        """All replies; raises EdgeSpecError while one of them is still being written."""
        if not self._batch.is_over():
            raise EdgeSpecError("the batch is not finished; read the stream to its end or close it")
        return [writing.reply for writing in self._batch.writings]
