"""The frames of llama.cpp's RPC protocol, version 7.

A request is a byte that names the command, eight bytes that count the payload, and the payload; a
reply, which not every command has, is the count and the payload. Numbers are little-endian. Source:
ggml/src/ggml-rpc/ggml-rpc.cpp of llama.cpp.
"""

from __future__ import annotations

import struct
from enum import IntEnum

MAJOR = 7
"""The version of the protocol that the sizes below belong to."""
HEAD = struct.Struct("<BQ")
"""Command, bytes of the payload."""
SIZE = struct.Struct("<Q")
TENSOR_BYTES = 296
CAPABILITIES = bytes(24)
"""What connections can do beside TCP: nothing, so that all of it can be read on the way."""
HELLO_REPLY = struct.Struct("<4B24s")
"""Version, a byte that ggml leaves 0, capabilities."""
MEMORY_REPLY = struct.Struct("<QQ")
"""Free and total bytes."""
ALLOC_REQUEST = struct.Struct("<IQ")
"""Device, bytes."""
ALLOC_REPLY = struct.Struct("<QQ")
"""Where the buffer is, 0 when there is no memory for it, and how large."""
SET_HEAD = struct.Struct(f"<{TENSOR_BYTES}sBQ")
"""Of the payload that sets a tensor: the tensor, whether to keep a copy on disk, the offset."""
GET_REQUEST = struct.Struct(f"<{TENSOR_BYTES}sQQ")
"""Tensor, offset, bytes."""
LARGEST_REQUEST = 1 << 16
"""Bytes: requests that are not a tensor or a graph are smaller."""
LARGEST_GRAPH = 8 << 20
PULSE = 0xE5
"""Ours: asked on a connection of its own, while another is at work, whether a worker is alive."""
HAS_PULSE = 1
"""In the byte that ggml leaves 0: whoever said it answers pulses."""
PULSE_REPLY = struct.Struct("<QI")
"""The count, and for how many seconds the server has not computed."""


class Command(IntEnum):
    """What a client may ask."""

    ALLOC_BUFFER = 0
    GET_ALIGNMENT = 1
    GET_MAX_SIZE = 2
    BUFFER_GET_BASE = 3
    FREE_BUFFER = 4
    BUFFER_CLEAR = 5
    SET_TENSOR = 6
    SET_TENSOR_HASH = 7
    GET_TENSOR = 8
    COPY_TENSOR = 9
    GRAPH_COMPUTE = 10
    GET_DEVICE_MEMORY = 11
    INIT_TENSOR = 12
    GET_ALLOC_SIZE = 13
    HELLO = 14
    DEVICE_COUNT = 15
    GRAPH_RECOMPUTE = 16
    MEMSET_TENSOR = 17


SILENT = frozenset(
    {
        Command.FREE_BUFFER,
        Command.BUFFER_CLEAR,
        Command.SET_TENSOR,
        Command.GRAPH_COMPUTE,
        Command.INIT_TENSOR,
        Command.GRAPH_RECOMPUTE,
        Command.MEMSET_TENSOR,
    }
)
"""Commands without a reply."""

_NO_ANSWER = {
    Command.HELLO: HELLO_REPLY.pack(MAJOR, 0, 0, 0, CAPABILITIES),
    Command.DEVICE_COUNT: struct.pack("<I", 1),
    Command.GET_ALIGNMENT: SIZE.pack(64),
    Command.GET_MAX_SIZE: SIZE.pack(2**63 - 1),
    Command.BUFFER_GET_BASE: SIZE.pack(1 << 20),
    Command.GET_ALLOC_SIZE: SIZE.pack(0),
    Command.ALLOC_BUFFER: ALLOC_REPLY.pack(0, 0),
    Command.GET_DEVICE_MEMORY: MEMORY_REPLY.pack(0, 0),
    Command.SET_TENSOR_HASH: b"\x01",  # it has the tensor: none need be sent
    Command.COPY_TENSOR: b"\x01",
}
"""Replies in the place of a worker that is gone, which llama.cpp takes without complaint."""


_DEVICE, _PLACE, _SOURCES = 4, 8, 10
_REQUEST_BYTES = {
    Command.ALLOC_BUFFER: ALLOC_REQUEST.size,
    Command.GET_ALIGNMENT: _DEVICE,
    Command.GET_MAX_SIZE: _DEVICE,
    Command.BUFFER_GET_BASE: _PLACE,
    Command.FREE_BUFFER: _PLACE,
    Command.BUFFER_CLEAR: _PLACE + 1,
    Command.SET_TENSOR_HASH: TENSOR_BYTES + 16,
    Command.GET_TENSOR: GET_REQUEST.size,
    Command.COPY_TENSOR: 2 * TENSOR_BYTES,
    Command.GET_DEVICE_MEMORY: _DEVICE,
    Command.INIT_TENSOR: TENSOR_BYTES,
    Command.GET_ALLOC_SIZE: _DEVICE + (1 + _SOURCES) * TENSOR_BYTES,
    Command.HELLO: len(CAPABILITIES),
    Command.DEVICE_COUNT: 0,
    Command.GRAPH_RECOMPUTE: _DEVICE,
    Command.MEMSET_TENSOR: TENSOR_BYTES + 17,
}


def check_request(command: Command, size: int) -> None:
    """Raise ValueError for a payload of a length that this command never has."""
    if command is Command.SET_TENSOR:
        known = size >= SET_HEAD.size
    elif command is Command.GRAPH_COMPUTE:
        known = size <= LARGEST_GRAPH
    else:
        known = size == _REQUEST_BYTES[command]
    if not known:
        raise ValueError(f"{command.name} with {size} bytes")


def reply_bytes(command: Command, payload: bytes) -> int:
    """Bytes of the payload of a reply; the request says how much of a tensor it reads."""
    if command is Command.GET_TENSOR:
        return int(GET_REQUEST.unpack(payload)[2])
    return len(_NO_ANSWER[command])


def stand_in(command: Command) -> bytes:
    """What to reply for a worker that is gone; b"" for a tensor, of which nothing is known."""
    return _NO_ANSWER.get(command, b"")


def request(command: Command, payload: bytes = b"") -> bytes:
    """A whole request."""
    return HEAD.pack(command, len(payload)) + payload
