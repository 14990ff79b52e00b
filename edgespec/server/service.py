"""One engine for many clients: names, turns, time and numbers; what protocols have in common."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse

from edgespec.engine.embedding import Pooling
from edgespec.engine.engine import Engine
from edgespec.engine.prompts import check_prompt
from edgespec.engine.reply_stream import Stream
from edgespec.engine.request import Request
from edgespec.errors import (
    BudgetError,
    ContextOverflowError,
    EdgeSpecError,
    KvFileError,
    OptionError,
    TemplateError,
)
from edgespec.server.desk import Desk, DeskFullError
from edgespec.server.guard import refused
from edgespec.server.metrics import Metrics
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import resident_bytes

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())
AskedT = TypeVar("AskedT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take from the others."""

    most_waiting: int = 256
    """Requests that wait for their turn."""
    timeout_s: float = 600.0
    """Seconds from a request to the end of its reply."""


class Service:
    """What routes work with."""

    def __init__(self, engine: Engine, aliases: tuple[str, ...], limits: Limits) -> None:
        """`aliases` are more names for the model."""
        self.engine, self.limits = engine, limits
        self.metrics = Metrics()
        self.desk = Desk(engine.plan.sequences, limits.most_waiting)
        self.name = engine.file.path.stem
        self.names = (self.name, *aliases)
        self.started_s = int(time.time())

    def check_name(self, name: str) -> None:
        """Raise an error for a model that is not the one here."""
        own = {*self.names, *(f"{one}:latest" for one in self.names), "", "default"}
        if name not in own:
            raise HTTPException(
                404,
                f"there is no model {name!r} here; ask for {self.name!r}, or start the server with "
                "--alias",
            )

    async def prepared(self, make: Callable[[], Request], *, sliding: bool = False) -> Request:
        """A request, checked before its turn comes."""
        request = await asyncio.to_thread(make)
        if not sliding:
            engine = self.engine
            check_prompt(len(request.prompt_ids), engine.plan, engine.file.spec.context_length)
        return request

    @asynccontextmanager
    async def writing(
        self, client: str, request: Request, *, sliding: bool = False
    ) -> AsyncIterator[Stream]:
        """The stream of a reply, when its turn comes; it ends with the context."""
        begun_s = time.perf_counter()
        stream: Stream | None = None
        try:
            async with asyncio.timeout(self.limits.timeout_s), self.desk.turn(client):
                policy = "sliding" if sliding else "stop"
                stream = self.engine.stream(request, on_overflow=policy)
                async with stream:
                    yield stream
        finally:
            one = None if stream is None else stream.generation
            if one is not None and one.stats is not None:
                seconds = time.perf_counter() - begun_s
                self.metrics.reply(one.stats, len(one.token_ids), one.finish_reason, seconds)

    async def embedded(
        self, text: str | list[int], pooling: Pooling
    ) -> tuple[NDArray[np.float32], int]:
        """The embedding of a text, and how many tokens it has."""
        ids = self.engine.tokenizer.encode(text) if isinstance(text, str) else text
        return await asyncio.to_thread(self.engine.embed, ids, pooling=pooling), len(ids)

    def gauges(self) -> dict[str, float]:
        """What has a value now."""
        return {
            "requests_waiting": self.desk.num_waiting,
            "requests_running": self.engine.line.num_running,
            "memory_resident_bytes": resident_bytes(),
            "memory_budget_bytes": self.engine.plan.budget_bytes,
            "memory_planned_bytes": self.engine.plan.planned_bytes,
            "sequences": self.engine.plan.sequences,
            "context_tokens": self.engine.plan.context_length,
            "context_tokens_of_model": self.engine.file.spec.context_length,
        }


async def read(request: HttpRequest, kind: type[AskedT]) -> AskedT:
    """A request's body as a model; raises HTTPException with a sentence for one that is none."""
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body of the request is not JSON") from None
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise HTTPException(400, f"{place or 'the body'}: {first['msg']}") from None


def client_of(request: HttpRequest, user: str | None = None) -> str:
    """Who asks, as far as turns go: the user that the client names, or its address."""
    host = request.client.host if request.client is not None else ""
    return f"{host} {user or request.headers.get('x-client', '')}"


def several(request: Request, n: int) -> list[Request]:
    """n requests that differ in their seeds, which count on from the first."""
    sampling = request.sampling
    seeds = [(sampling.seed + place) % 2**64 for place in range(n)]
    return [replace(request, sampling=replace(sampling, seed=seed)) for seed in seeds]


_STATUS: tuple[tuple[type[Exception], int, str | None], ...] = (
    (ContextOverflowError, 400, "context_length_exceeded"),
    (OptionError, 400, None),
    (TemplateError, 400, None),
    (KvFileError, 400, None),
    (BudgetError, 503, "out_of_memory"),
    (EdgeSpecError, 500, None),
    (DeskFullError, 429, "queue_full"),
    (TimeoutError, 504, "timeout"),
)


def answer_to(error: Exception) -> JSONResponse:
    """What a client hears of an error."""
    if isinstance(error, HTTPException):
        return refused(error.status_code, error.detail)
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            answer = refused(status, _sentence(error), code)
            if status == 429:
                answer.headers["Retry-After"] = "5"
            return answer
    _log.exception("a request failed", exc_info=error)
    return refused(500, "the server failed; its log says more")


def _sentence(error: Exception) -> str:
    if isinstance(error, DeskFullError):
        return "too many requests wait already; ask again later"
    if isinstance(error, TimeoutError):
        return "the reply took longer than this server allows; see --timeout"
    return str(error)
