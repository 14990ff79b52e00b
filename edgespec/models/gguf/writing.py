"""GGUF files made of parts of another one: its keys, some of its tensors, copied in pieces."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import IO

from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import DEFAULT_ALIGNMENT, GgufHeader
from edgespec.models.gguf.parts import JoinedSource
from edgespec.models.spec import TensorInfo

_CHUNK_BYTES = 1 << 24
_ALL: Mapping[str, int] = MappingProxyType({})


def gguf_text(text: str) -> bytes:
    """A text as GGUF has it."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(
    file: IO[bytes],
    source: FileSource | JoinedSource,
    header: GgufHeader,
    keys: bytes,
    num_keys: int,
    tensors: Sequence[TensorInfo],
    most_bytes: Mapping[str, int] = _ALL,
) -> None:
    """Write a file with these keys and tensors of `source`; raises OSError.

    Of a tensor in `most_bytes` only so many bytes are copied and the rest is 0: a hole in the file,
    where the file system has such.
    """
    alignment = header.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int)
    records, position = [], 0
    for info in tensors:
        dims = tuple(reversed(info.shape))
        records.append(
            gguf_text(info.name)
            + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
            + struct.pack("<IQ", info.type.type_id, position)
        )
        position += -(-info.size_bytes // alignment) * alignment
    file.write(struct.pack("<4sIQQ", b"GGUF", header.version, len(tensors), num_keys))
    file.write(keys + b"".join(records))
    for info in tensors:
        _pad(file, alignment)
        end = file.tell() + info.size_bytes
        copied = min(info.size_bytes, most_bytes.get(info.name, info.size_bytes))
        for offset, size in _pieces(info.offset, copied):
            file.write(source.read(offset, size).data)
        if copied < info.size_bytes:
            file.truncate(end)
            file.seek(end)
    _pad(file, alignment)


def _pad(file: IO[bytes], alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _pieces(begin: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Offset and size of the parts in which bytes are copied."""
    for start in range(0, size_bytes, _CHUNK_BYTES):
        yield begin + start, min(_CHUNK_BYTES, size_bytes - start)
