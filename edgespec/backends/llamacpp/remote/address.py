"""Addresses of workers: what people type, and who could reach them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from edgespec.errors import BackendError, OptionError

DEFAULT_PORT = 50052
MOST_WORKERS = 16
"""Devices of one model, in llama.cpp."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host's name or address, and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "host:port", "[::1]:port" or a host alone; raises OptionError."""
        host, port = text.strip(), str(DEFAULT_PORT)
        if host.startswith("["):
            host, _, rest = host[1:].partition("]")
            port = rest.removeprefix(":") or port
        elif host.count(":") == 1:
            host, port = host.split(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise OptionError(
                f"{text!r} is not the address of a worker; write it like 192.168.1.5:{DEFAULT_PORT}"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_workers(text: str | Sequence[str] | None) -> tuple[Address, ...]:
    """Addresses from a list or a text with commas; raises OptionError for what is none."""
    parts = text.split(",") if isinstance(text, str) else text or ()
    found = tuple(Address.parse(part) for part in parts)
    if len(set(found)) < len(found):
        raise OptionError("the same worker was named twice in --workers; name each once")
    if len(found) > MOST_WORKERS:
        raise OptionError(f"{len(found)} workers were named; {MOST_WORKERS} are the most")
    return found


def check_listening(host: str, *, allow_public: bool) -> None:
    """Raise OptionError for an address that other machines reach, unless that was asked for.

    Private networks count: whoever is in them could use the worker.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BackendError(f"{host!r} is no address of this machine: {error}") from None
    places = {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found}
    if allow_public or all(place.is_loopback for place in places):
        return
    raise OptionError(
        f"{host} can be reached from other machines, and llama.cpp's RPC protocol has no "
        "authentication and no encryption; listen on 127.0.0.1 behind an SSH tunnel, or add "
        "--allow-public where everyone who can reach it is trusted"
    )
