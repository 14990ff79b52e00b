"""What a worker's short answers may say, before llama.cpp believes them.

ggml ends the process over an alignment that is no power of two, and computes with sizes unseen.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from edgespec.backends.llamacpp.remote.protocol import (
    ALLOC_REPLY,
    ALLOC_REQUEST,
    MEMORY_REPLY,
    Command,
)

MOST_DEVICES = 16
_MOST_ALIGNMENT = 1 << 16
_MOST_BYTES = 1 << 50
"""More than any machine has; sums of some such sizes are still whole numbers of 64 bits."""
_PADDING = 1 << 20
_SHAPE = struct.Struct("<4I4I")
_SHAPE_OFFSET = 24
"""Of a device's number, a tensor's id, type and buffer before its sizes and strides."""


def check_reply(command: Command, payload: bytes, reply: bytes) -> None:
    """Raise ValueError for an answer that no worker gives to this request."""
    check = _CHECKS.get(command)
    if check is not None and not check(payload, reply):
        raise ValueError(f"{reply[:16].hex()} is no answer to {command.name}")


def _number(reply: bytes) -> int:
    return int.from_bytes(reply, "little")


def _is_alignment(payload: bytes, reply: bytes) -> bool:
    number = _number(reply)
    return 0 < number <= _MOST_ALIGNMENT and not number & (number - 1)


def _is_base(payload: bytes, reply: bytes) -> bool:
    number = _number(reply)
    return 0 < number < 1 << 62 and not number % 16


def _is_buffer(payload: bytes, reply: bytes) -> bool:
    asked = int(ALLOC_REQUEST.unpack(payload)[1])
    place, size = (int(number) for number in ALLOC_REPLY.unpack(reply))
    return not place or asked <= size <= min(asked + _PADDING, _MOST_BYTES)


def _is_tensor_size(payload: bytes, reply: bytes) -> bool:
    """At least up to where the last row begins, and hardly more than all rows."""
    sizes = [int(number) for number in _SHAPE.unpack_from(payload, _SHAPE_OFFSET)]
    counts, strides = sizes[:4], sizes[4:]
    if not all(counts):
        return _number(reply) <= _PADDING
    steps = zip(counts[1:], strides[1:], strict=True)
    least = sum((count - 1) * stride for count, stride in steps)
    most = max(count * stride for count, stride in zip(counts, strides, strict=True))
    return least < _number(reply) <= min(2 * most + _PADDING, _MOST_BYTES)


def _is_memory(payload: bytes, reply: bytes) -> bool:
    return int(max(MEMORY_REPLY.unpack(reply))) <= _MOST_BYTES


_CHECKS: dict[Command, Callable[[bytes, bytes], bool]] = {
    Command.ALLOC_BUFFER: _is_buffer,
    Command.BUFFER_GET_BASE: _is_base,
    Command.COPY_TENSOR: lambda payload, reply: _number(reply) <= 1,
    Command.DEVICE_COUNT: lambda payload, reply: 1 <= _number(reply) <= MOST_DEVICES,
    Command.GET_ALIGNMENT: _is_alignment,
    Command.GET_ALLOC_SIZE: _is_tensor_size,
    Command.GET_DEVICE_MEMORY: _is_memory,
    Command.GET_MAX_SIZE: lambda payload, reply: _number(reply) > 0,
    Command.SET_TENSOR_HASH: lambda payload, reply: _number(reply) <= 1,
}
