"""A few questions to a worker before llama.cpp, which ends the process over bad answers, asks."""

from __future__ import annotations

import socket

from edgespec.backends.llamacpp.remote.address import Address
from edgespec.backends.llamacpp.remote.checking import check_reply
from edgespec.backends.llamacpp.remote.protocol import (
    CAPABILITIES,
    HAS_PULSE,
    HELLO_REPLY,
    MAJOR,
    MEMORY_REPLY,
    SIZE,
    Command,
    reply_bytes,
    request,
)
from edgespec.backends.llamacpp.remote.wire import Wire
from edgespec.errors import BackendError
from edgespec.system.records import dataclass

LIMIT_S = 4.0


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker gives to clients, in bytes."""

    free_bytes: int
    total_bytes: int


def ask_worker(address: Address, limit_s: float = LIMIT_S) -> Offer:
    """What a worker offers now; raises BackendError when none answers as one within the limit."""
    wire = connect(address, limit_s)
    try:
        hello(wire, address)
        _reply(wire, Command.DEVICE_COUNT)
        free, total = MEMORY_REPLY.unpack(_reply(wire, Command.GET_DEVICE_MEMORY, bytes(4)))
        return Offer(free, max(free, total))
    except TimeoutError:
        raise BackendError(
            f"the worker at {address} does not answer within {limit_s:g} s; it may be at work for "
            "another client, or hang: restart it"
        ) from None
    except OSError as error:
        raise stranger(address, str(error)) from None
    finally:
        wire.close()


def connect(address: Address, limit_s: float) -> Wire:
    """A connection to a worker; raises BackendError when there is none to be had."""
    try:
        wire = Wire(socket.create_connection((address.host, address.port), limit_s))
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BackendError(
            f"no worker answers at {address} ({why}); start one on that machine: "
            f"edgespec worker --port {address.port}"
        ) from None
    if address.key is not None:
        try:
            wire.protect(address.key)
        except OSError as error:
            wire.close()
            raise BackendError(
                f"the worker at {address} does not have the key in {address.key.path} ({error}); "
                "start it with --key-file and a copy of the same file"
            ) from None
    return wire


def hello(wire: Wire, address: Address) -> bool:
    """Greet, and check that it is a worker of our version; returns whether it answers pulses.
    Raises BackendError, OSError.
    """
    major, minor, patch, more, _ = HELLO_REPLY.unpack(_reply(wire, Command.HELLO, CAPABILITIES))
    if major != MAJOR:
        raise BackendError(
            f"the worker at {address} speaks version {major}.{minor}.{patch} of llama.cpp's "
            f"protocol and this one {MAJOR}; install the same llama-cpp-python on both machines"
        )
    return bool(more & HAS_PULSE)


def stranger(address: Address, why: str) -> BackendError:
    """The error for something that answers, but not as a worker does."""
    return BackendError(
        f"what listens at {address} does not answer like a worker ({why}); check the address, "
        "whether the worker there wants a --key-file, and that it is not at work for another client"
    )


def _reply(wire: Wire, command: Command, payload: bytes = b"") -> bytes:
    wire.send(request(command, payload))
    size, expected = SIZE.unpack(wire.read(SIZE.size))[0], reply_bytes(command, payload)
    if size != expected:
        raise ConnectionError(f"{size} bytes instead of {expected}")
    reply = wire.read(expected)
    try:
        check_reply(command, payload, reply)
    except ValueError as error:
        raise ConnectionError(str(error)) from None
    return reply
