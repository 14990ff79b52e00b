"""Addresses of workers: what people type, and who could reach them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from typing import Self

from edgespec.backends.llamacpp.remote.key import Key
from edgespec.errors import BackendError, OptionError
from edgespec.system.records import dataclass

DEFAULT_PORT = 50052
MOST_WORKERS = 16
"""Devices of one model, in llama.cpp."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host's name or address, and a TCP port."""

    host: str
    port: int
    key: Key | None = field(default=None, compare=False)
    """What opens and encrypts a connection to it."""

    @classmethod
    def parse(cls, text: str, key: Key | None = None) -> Self:
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
        return cls(host, int(port), key)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_workers(text: str | Sequence[str] | None, key: Key | None = None) -> tuple[Address, ...]:
    """Addresses from a list or a text with commas; raises OptionError for what is none, and for one
    on another machine without a key.
    """
    parts = text.split(",") if isinstance(text, str) else text or ()
    found = tuple(Address.parse(part, key) for part in parts)
    if key is None:
        for address in found:
            _check_without_key(address)
    if len(set(found)) < len(found):
        raise OptionError("the same worker was named twice in --workers; name each once")
    if len(found) > MOST_WORKERS:
        raise OptionError(f"{len(found)} workers were named; {MOST_WORKERS} are the most")
    return found


def check_listening(host: str, key: Key | None) -> None:
    """Raise OptionError for an address that other machines reach, where there is no key.

    Private networks count: whoever is in them could use the worker.
    """
    try:
        is_here = _is_loopback(host)
    except (OSError, UnicodeError) as error:
        raise BackendError(f"{host!r} is no address of this machine: {error}") from None
    if key is None and not is_here:
        raise OptionError(
            f"{host} can be reached from other machines, so a worker there needs a key: make one "
            "with edgespec worker --new-key FILE, add --key-file FILE here and where the worker is "
            "used; or listen on 127.0.0.1 behind an SSH tunnel"
        )


def _check_without_key(address: Address) -> None:
    with suppress(OSError, UnicodeError):  # an address that is none is told when it is used
        if not _is_loopback(address.host):
            raise OptionError(
                f"the worker at {address} is on another machine, and without a key others could "
                "read what is sent and answer in its place: add --key-file with the worker's key, "
                "or reach it on 127.0.0.1 through an SSH tunnel"
            )


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    places = {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found}
    return all(place.is_loopback for place in places)
