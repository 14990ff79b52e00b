"""Replies to one HTTP request: whole, or piece by piece as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from edgespec.engine.generation import Generation
from edgespec.engine.reply import Reply, TokenLogprob
from edgespec.engine.request import Request
from edgespec.models.reasoning import Piece
from edgespec.server.service import Service
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class News:
    """Something of one choice: a piece of its text, or its end."""

    index: int
    piece: Piece
    logprobs: list[TokenLogprob]
    """Of the tokens since the last news."""
    tokens: list[tuple[int, str]]
    """These, each with its drafter, where that was asked for."""
    reply: Reply | None = None
    """The whole, at the end."""


async def whole(
    service: Service, client: str, requests: Sequence[Request], *, sliding: bool = False
) -> list[Reply]:
    """All replies, when they have ended."""

    async def one(request: Request) -> Reply:
        async with service.writing(client, request, sliding=sliding) as stream:
            async for _ in stream:
                pass
        return stream.reply

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(request)) for request in requests]
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    return [task.result() for task in tasks]


async def news(
    service: Service, client: str, requests: Sequence[Request], *, sliding: bool = False
) -> AsyncGenerator[News, None]:
    """What comes of each reply, as it comes; the last of each has the whole."""
    queue: asyncio.Queue[News | None] = asyncio.Queue()

    async def one(index: int, request: Request) -> None:
        async with service.writing(client, request, sliding=sliding) as stream:
            written, told = stream.generation, 0
            async for piece in stream:
                upto = len(written.token_ids)  # a step may be going on in another thread
                queue.put_nowait(_between(written, told, upto, index, piece))
                told = upto
        upto = len(written.token_ids)
        queue.put_nowait(_between(written, told, upto, index, Piece(""), stream.reply))

    async def all_of_them() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for index, request in enumerate(requests):
                    group.create_task(one(index, request))
        finally:
            queue.put_nowait(None)

    writing = asyncio.create_task(all_of_them())
    try:
        while (item := await queue.get()) is not None:
            yield item
        await writing
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        writing.cancel()


def _between(
    one: Generation, told: int, upto: int, index: int, piece: Piece, reply: Reply | None = None
) -> News:
    """What came of a reply with these of its tokens."""
    part = slice(told, upto)
    tokens = list(zip(one.token_ids[part], one.origins[part], strict=False))
    return News(index, piece, one.logprobs[part], tokens, reply)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
