"""`edgespec serve`: the application behind a socket, until it is stopped."""

from __future__ import annotations

import ipaddress
import logging
import socket
import sys
from contextlib import suppress
from dataclasses import field, replace

from edgespec.errors import OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.system.few_collections import usual_collections
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import keep_one_heap

_GRACE_S = 5


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where a server listens, and whom it answers."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str = field(default="", repr=False)
    aliases: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    most_waiting: int = 256
    timeout_s: float = 600.0
    max_body_mib: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise OptionError(f"cannot use port {self.port}; ports are 1 to 65535, or 0 for any")
        if self.timeout_s <= 0 or self.most_waiting < 0 or self.max_body_mib < 1:
            raise OptionError("--timeout and --max-body take numbers above 0, --max-waiting from 0")
        if not _is_loopback(self.host) and not self.api_key:
            raise OptionError(
                f"other machines can reach {self.host}, so the server needs a key there: set "
                "EDGESPEC_API_KEY, or use --api-key"
            )
        for origin in self.cors:
            if not origin.startswith(("http://", "https://")):
                raise OptionError(
                    f"--cors takes an origin such as https://example.org, and {origin!r} is none"
                )


def run_server(load: LoadOptions, options: ServeOptions) -> None:
    """Serve until interrupted; raises OptionError for what is not installed."""
    try:
        import uvicorn

        from edgespec.server.app import make_app
        from edgespec.server.guard import Rules
        from edgespec.server.service import Limits, Service
    except ImportError as error:
        raise OptionError(
            f"the server needs {error.name}: pip install 'edgespec[server]'"
        ) from None
    from edgespec.loading.load import open_engine
    from edgespec.terminal.progress import ProgressLine

    rules = Rules(
        (options.host, *options.allow_hosts),
        options.cors,
        options.api_key,
        options.max_body_mib << 20,
    )
    keep_one_heap()
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    with (
        _listening(options.host, options.port) as listening,  # so that a taken port is said at once
        ProgressLine() as progress,
        open_engine(replace(load, progress=progress)) as engine,
    ):
        usual_collections()
        limits = Limits(options.most_waiting, options.timeout_s)
        service = Service(engine, options.aliases, limits)
        config = uvicorn.Config(
            make_app(service, rules, load),
            host=options.host,
            port=options.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
        )
        port = listening.getsockname()[1]
        shown = f"[{options.host}]" if ":" in options.host else options.host
        progress.clear()
        print(
            f"serving {service.name} on http://{shown}:{port} (a page; OpenAI's protocol under "
            f"/v1, Ollama's under /api), {engine.plan.sequences} replies at once; stop with Ctrl-C",
            flush=True,
        )
        with suppress(KeyboardInterrupt):  # which uvicorn raises anew at the end, but not always
            uvicorn.Server(config).run([listening])
        print("edgespec serve: stopped", file=sys.stderr)


def _listening(host: str, port: int) -> socket.socket:
    """A socket at an address; raises OptionError for one that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OptionError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another "
            "--port or --host"
        ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
