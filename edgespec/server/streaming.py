"""Answers that come piece by piece: server-sent events, or lines of JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from edgespec.server.service import answer_to

T = TypeVar("T")
Values = AsyncIterator[dict[str, Any]]
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Gone(Exception):
    """The client has left; nobody hears the answer."""


async def while_connected(request: HttpRequest, work: Awaitable[T]) -> T:
    """A result, unless the client leaves first: then the work is cancelled, and Gone raised."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def _left(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def events(values: Values) -> Response:
    """Server-sent events as OpenAI's clients read them, [DONE] at the end."""
    return await _streamed(
        values, lambda value: f"data: {value}\n\n", "text/event-stream", "data: [DONE]\n\n"
    )


async def lines(values: Values) -> Response:
    """A JSON object in each line."""
    return await _streamed(values, lambda value: f"{value}\n", "application/x-ndjson", "")


async def _streamed(
    values: Values, frame: Callable[[str], str], media_type: str, end: str
) -> Response:
    """What fails before the first value is an answer of its own; later it is the last value."""

    async def body() -> AsyncIterator[str]:
        try:
            async for value in values:
                yield frame(_json(value))
        except Exception as error:
            yield frame(bytes(answer_to(error).body).decode())
        if end:
            yield end

    return StreamingResponse(body(), media_type=media_type, headers=_HEADERS)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
