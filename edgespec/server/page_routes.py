"""The page: a chat in the browser, with memory, speed and plans in view."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib import resources
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgespec.loading.load import plan_for
from edgespec.loading.load_options import LoadOptions
from edgespec.server.service import Service

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_MOST_DIGITS = 9
OPEN_PATHS = frozenset({"/", "/page/page.css", "/page/page.js"})
"""What needs no key: there is nothing of the model in it."""


class PageRoutes:
    """The page's files, and the numbers that it shows."""

    def __init__(self, service: Service, load: LoadOptions) -> None:
        """`load` is what the server was started with: plans are made for its model."""
        self._service, self._load = service, load
        self._planning = asyncio.Lock()

    def routes(self) -> list[Route]:
        return [
            Route("/", self.file),
            Route("/page/{name}", self.file),
            Route("/status", self.status),
            Route("/plan", self.plan),
        ]

    async def file(self, request: HttpRequest) -> Response:
        name = request.path_params.get("name", "index.html")
        if f"/page/{name}" not in OPEN_PATHS and name != "index.html":
            raise HTTPException(404, "the page has no such file")
        text = (resources.files("edgespec.server") / "page" / name).read_text("utf-8")
        return Response(text, media_type=_KINDS[name.rpartition(".")[2]], headers=_HEADERS)

    async def status(self, _: HttpRequest) -> Response:
        return JSONResponse({"model": self._service.name, **self._service.gauges()})

    async def plan(self, request: HttpRequest) -> Response:
        """What a start with another budget or context would do, one such question at a time."""
        asked: dict[str, Any] = {"memory": request.query_params.get("memory", self._load.memory)}
        context = request.query_params.get("context")
        if context is not None:
            if not context.isdecimal() or len(context) > _MOST_DIGITS:
                told = f"context is a number of tokens, and {context[:40]!r} is none"
                raise HTTPException(400, told)
            asked["context"] = int(context)
        async with self._planning:
            made = await asyncio.to_thread(plan_for, replace(self._load, progress=None, **asked))
        return JSONResponse({"text": made.explain(), "plan": made.as_dict()})
