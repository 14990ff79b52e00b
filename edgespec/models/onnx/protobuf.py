"""The wire format of Protocol Buffers, as far as reading and patching a message takes.

Every length is checked against what is there. Source: "Encoding", protobuf.dev.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import TypeAlias

Buffer: TypeAlias = "bytes | memoryview | mmap.mmap"
Value: TypeAlias = "int | memoryview"
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
_WIDTHS = {FIXED_64: 8, FIXED_32: 4}


class WireError(ValueError):
    """The bytes are no message."""


def fields(message: Buffer) -> Iterator[tuple[int, int, Value]]:
    """(field number, wire type, value) in order; a string or message is a view of its bytes.

    Raises WireError.
    """
    view, position = memoryview(message), 0
    while position < len(view):
        key, position = _varint(view, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, position = _varint(view, position)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, position = _varint(view, position)
        elif kind in _WIDTHS:
            length = _WIDTHS[kind]
        else:
            raise WireError(f"wire type {kind} at byte {position}")
        if length > len(view) - position:
            raise WireError(f"{length} bytes at byte {position} of {len(view)}")
        yield number, kind, view[position : position + length]
        position += length


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(view) and shift < 64:
        byte = view[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise WireError(f"a number that does not end at byte {position}")


def varints(data: Buffer) -> Iterator[int]:
    """Numbers packed into one field; raises WireError."""
    view, position = memoryview(data), 0
    while position < len(view):
        value, position = _varint(view, position)
        yield value


def signed(value: int) -> int:
    """A varint as int64."""
    return value - (1 << 64) if value >> 63 else value


def varint(value: int) -> bytes:
    """A number as it is written."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | Buffer) -> bytes:
    """One field as it is written: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    return varint(number << 3 | BYTES) + varint(len(value)) + bytes(value)
