"""The application: routes, the guard around them, and what errors become."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from edgespec.errors import EdgeSpecError
from edgespec.loading.load_options import LoadOptions
from edgespec.server.desk import DeskFullError
from edgespec.server.guard import Guard, Rules
from edgespec.server.metrics import CONTENT_TYPE
from edgespec.server.ollama_routes import OllamaRoutes
from edgespec.server.openai_routes import OpenAiRoutes
from edgespec.server.page_routes import OPEN_PATHS, PageRoutes
from edgespec.server.service import Service, answer_to
from edgespec.server.streaming import Gone


def make_app(service: Service, rules: Rules, load: LoadOptions) -> Starlette:
    """An ASGI application that answers those whom the rules let in, with the engine of a service,
    which was opened with `load`.
    """

    async def health(_: HttpRequest) -> Response:
        closed = service.engine.line.closed
        return JSONResponse({"status": "closed" if closed else "ok"}, 503 if closed else 200)

    async def metrics(_: HttpRequest) -> Response:
        return PlainTextResponse(service.metrics.text(service.gauges()), media_type=CONTENT_TYPE)

    async def failed(_: HttpRequest, error: Exception) -> Response:
        return answer_to(error)

    async def gone(_: HttpRequest, error: Exception) -> Response:
        return Response(status_code=499)

    routes = [
        Route("/health", health),
        Route("/metrics", metrics),
        *OpenAiRoutes(service).routes(),
        *OllamaRoutes(service).routes(),
        *PageRoutes(service, load).routes(),
    ]
    paths = frozenset(route.path for route in routes)
    guard = Middleware(
        Guard,
        rules=rules,
        metrics=service.metrics,
        paths=paths,
        open_paths=OPEN_PATHS | {"/health"},
    )
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(rules.origins),
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
    )
    kinds = (HTTPException, EdgeSpecError, DeskFullError, TimeoutError, Exception)
    handlers = {Gone: gone, **dict.fromkeys(kinds, failed)}
    return Starlette(
        routes=routes,
        middleware=[guard, *([cors] if rules.origins else [])],
        exception_handlers=handlers,
    )
