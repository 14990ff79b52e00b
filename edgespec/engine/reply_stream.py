"""A reader's handle on one reply."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from edgespec.engine.generation import Generation
from edgespec.engine.line import Line
from edgespec.engine.reply import Reply
from edgespec.engine.request import Request
from edgespec.models.reasoning import Piece

if TYPE_CHECKING:  # a start without it is shorter, and few programs have a loop
    import asyncio

Then = Callable[[Generation], None]
"""Called once with a reply that has ended, however it did."""
_MANY = 256
"""Pieces that may wait where nobody reads them."""


class Stream:
    """An iterator over the pieces of one reply; `reply` is the whole once it has ended.

    A context manager, for `with` and `async with`, and an asynchronous iterator too. The line holds
    the generation and not this, so a stream that nobody holds any more ends at once.
    """

    def __init__(self, line: Line, generation: Generation, then: Then | None = None) -> None:
        self._line, self.generation = line, generation
        self._then = _Once(then)
        self._news: asyncio.Event | None = None
        """Set when there is something to read; None until a coroutine asks."""
        self._left = weakref.finalize(self, _leave, line, generation, self._then)
        self._left.atexit = False

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        one = self.generation
        self._line.submit(one)
        while not one.unread:
            if one.stats is not None and not one.unread:
                self._ended()
                raise StopIteration
            try:
                self._line.advance(lambda: bool(one.unread) or one.stats is not None)
            finally:  # also where it was interrupted
                if one.stats is not None:
                    self._then(one)
        return one.unread.popleft()

    def finish(self) -> Reply:
        """The reply, once it has ended: as if all pieces were read, in fewer turns of the line."""
        one = self.generation

        def has_ended() -> bool:
            return one.stats is not None

        self._line.submit(one)
        while not has_ended():
            try:
                self._line.advance(lambda: len(one.unread) > _MANY or has_ended())
            finally:  # also where it was interrupted
                if has_ended():
                    self._then(one)
            one.unread.clear()
        self._ended()
        return one.reply

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        one = self.generation
        if self._news is None:
            import asyncio

            self._line.submit(one)
            self._news = asyncio.Event()
            one.wake = _waker(asyncio.get_running_loop(), self._news)
            self._line.attend(one)
        while not one.unread:
            if one.stats is not None and not one.unread:
                self._ended()
                raise StopAsyncIteration
            await self._news.wait()
            self._news.clear()
        return one.unread.popleft()

    def _ended(self) -> None:
        self._then(self.generation)
        if self.generation.error is not None:
            raise self.generation.error

    def cancel(self) -> None:
        """End the reply where it stands; may be called by any thread, and does not wait."""
        self._line.cancel(self.generation, wait=False)

    def close(self) -> None:
        """End the reply where it stands, and wait for that; what was written stays in the cache."""
        self._line.cancel(self.generation)
        self._then(self.generation)

    async def aclose(self) -> None:
        """`close` for coroutines."""
        import asyncio

        self.cancel()
        if self.generation.stats is None:
            await asyncio.to_thread(self._line.cancel, self.generation)
        self._then(self.generation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def request(self) -> Request:
        return self.generation.request

    @property
    def text(self) -> str:
        """What has been written so far of the answer."""
        return self.generation.text

    @property
    def reasoning(self) -> str:
        """What has been written so far of the thoughts before it."""
        return self.generation.reasoning

    @property
    def untouched(self) -> bool:
        """Whether the text is all that the tokens say: none of it was reasoning or its marks."""
        return self.generation.untouched

    @property
    def token_ids(self) -> list[int]:
        return self.generation.token_ids

    @property
    def seen_ids(self) -> list[int]:
        """What the model has before it: prompt and reply, less what a full context dropped."""
        return self.generation.seen_ids

    @property
    def started(self) -> bool:
        """Whether the reply was begun: its prompt was accepted and prefilled."""
        return self.generation.began

    @property
    def reply(self) -> Reply:
        """The reply; raises EdgeSpecError while it is still being written."""
        return self.generation.reply


class _Once:
    """What is to happen at the end of a reply, the first time that it is noticed."""

    def __init__(self, then: Then | None) -> None:
        self._then = then

    def __call__(self, generation: Generation) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(generation)


def _leave(line: Line, generation: Generation, then: _Once) -> None:
    """A stream was dropped: by whatever thread, perhaps in the middle of a step."""
    line.cancel(generation, wait=False)
    if generation.stats is not None:
        then(generation)


def _waker(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> Callable[[], None]:
    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(news.set)

    return wake
