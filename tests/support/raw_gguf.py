"""GGUF bytes written by hand, so that tests can get any of them wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def strings(values: Sequence[str]) -> bytes:
    return struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values))


def numbers(kind: int, code: str, values: Sequence[float]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + struct.pack(f"<{len(values)}{code}", *values)


def tensor(
    name: str | bytes,
    dims: Sequence[int],
    kind: int = 0,
    offset: int = 0,
    num_dims: int | None = None,
) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return (
        text(name)
        + struct.pack("<I", count)
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    data: bytes = b"\0" * 4096,
) -> bytes:
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    body = head + b"".join(keys) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32) + data
