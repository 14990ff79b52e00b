"""A server of one engine on a port of this machine, for as long as a test needs it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from edgespec.engine.engine import Engine
from edgespec.loading.load_options import LoadOptions
from edgespec.server.app import make_app
from edgespec.server.guard import Rules
from edgespec.server.service import Limits, Service


@dataclass
class Answered:
    """An HTTP answer."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Served:
    """A server that runs, and how to ask it."""

    service: Service
    port: int
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answered:
        """One request; a body that is bytes goes as it is, anything else as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            kept = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, sent, self.headers | kept)
            found = connection.getresponse()
            return Answered(found.status, found.read().decode(), dict(found.getheaders()))
        finally:
            connection.close()


@contextmanager
def serving(
    engine: Engine,
    rules: Rules | None = None,
    limits: Limits | None = None,
    aliases: tuple[str, ...] = ("tiny",),
) -> Iterator[Served]:
    """Serve an engine until the block ends."""
    rules = rules or Rules()
    service = Service(engine, aliases, limits or Limits())
    app = make_app(service, rules, LoadOptions(engine.file.path))
    headers = {"Authorization": f"Bearer {rules.api_key}"} if rules.api_key else {}
    with running(app, lifespan="off", ws="none") as port:
        yield Served(service, port, headers)


@contextmanager
def running(app: Any, **options: Any) -> Iterator[int]:
    """Run an application on a port of this machine until the block ends; gives the port."""
    config = uvicorn.Config(
        app, port=0, log_level="warning", timeout_graceful_shutdown=2, **options
    )
    socket = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    try:
        while thread.is_alive() and not server.started:
            time.sleep(0.005)
        yield socket.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
