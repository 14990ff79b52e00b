"""Who may ask: hosts, origins, keys and sizes, before a request reaches any route."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import field
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.server.metrics import Metrics
from edgespec.system.records import dataclass

_MOST_DIGITS = 18
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Rules:
    """What the guard lets through."""

    hosts: tuple[str, ...] = ()
    """Names that requests may be sent to, besides this machine's own and addresses."""
    origins: tuple[str, ...] = ()
    """Origins of pages that may ask, such as "https://example.org"; besides the server's own."""
    api_key: str = field(default="", repr=False)
    """What clients must send; "" asks for none."""
    max_body_bytes: int = 8 << 20


class Guard:
    """ASGI middleware; every refusal is one sentence in the form of OpenAI's errors.

    A page that a browser was told lives at this machine's address (DNS rebinding) still names its
    own host, so other hosts' names are refused, and so are other origins.
    """

    def __init__(
        self,
        app: ASGIApp,
        rules: Rules,
        metrics: Metrics,
        paths: frozenset[str],
        open_paths: frozenset[str],
    ) -> None:
        """`paths` are counted by name, and others together; `open_paths` need no key."""
        self._open = open_paths
        self._app, self._rules, self._metrics, self._paths = app, rules, metrics, paths
        self._key = _digest(rules.api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, counting)
                return
            await self._limited(scope, receive, counting)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.request(path, status)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """The answer to a request that may not be made, None for one that may."""
        headers, rules = Headers(scope=scope), self._rules
        host = headers.get("host", "")
        if not self._is_own(_hostname(host)):
            return refused(403, f"this server is not called {_hostname(host)!r}; see --allow-host")
        origin = headers.get("origin")
        if origin is not None and origin not in rules.origins and urlsplit(origin).netloc != host:
            return refused(403, f"pages of {origin} may not use this server; see --cors")
        length = headers.get("content-length", "0")
        is_number = length.isdecimal() and len(length) <= _MOST_DIGITS
        if not is_number or int(length) > rules.max_body_bytes:
            return too_large(rules.max_body_bytes)
        is_open = scope["path"] in self._open or scope["method"] == "OPTIONS"
        if rules.api_key and not is_open and not hmac.compare_digest(_sent(headers), self._key):
            return refused(
                401,
                "this server wants its API key, as Authorization: Bearer KEY",
                "invalid_api_key",
            )
        return None

    def _is_own(self, name: str) -> bool:
        if name in _LOCAL or name in self._rules.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # an address is no name that another page could have

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, but no more of its body than the limit."""
        num_bytes, most = 0, self._rules.max_body_bytes
        begun = False

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > most:
                raise _TooLargeError
            return message

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, counted, noting)
        except _TooLargeError:
            if not begun:
                await too_large(most)(scope, receive, send)


class _TooLargeError(Exception):
    pass


def refused(status: int, message: str, code: str | None = None) -> JSONResponse:
    """An error in the form that OpenAI's clients read."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return JSONResponse({"error": error}, status)


def too_large(most: int) -> JSONResponse:
    return refused(413, f"the request is larger than {most >> 20} MiB; see --max-body")


def _hostname(host: str) -> str:
    """The name or address in a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _sent(headers: Headers) -> bytes:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return _digest(key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", ""))


def _digest(key: str) -> bytes:
    """Keys of any length compare in the same time."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
