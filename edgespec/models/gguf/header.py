"""The GGUF container, versions 2 and 3, little endian: its header, validated before it is trusted.

Every count, length, offset and size is checked against the file's real length before memory is
allocated for it. Source: "GGUF", ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from dataclasses import field
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.strings import StringArray
from edgespec.models.spec import TensorInfo, TensorType
from edgespec.system.lost_pages import guard, num_lost_pages
from edgespec.system.records import dataclass

MetadataValue: TypeAlias = "bool | int | float | str | NDArray[np.generic] | StringArray"

# Far above any real model, far below what would hurt: a hostile header stops here.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_LENGTH = 1 << 24
MAX_KEY_BYTES = 65535
MAX_TENSOR_NAME_BYTES = 64
MAX_ALIGNMENT = 1 << 20

KEYS_BEGIN = 24
DEFAULT_ALIGNMENT = 32
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TENSOR_TYPES = {kind.type_id: kind for kind in TensorType}
_IMPOSTORS = {
    b"ggml": "a pre-GGUF model (ggml)",
    b"tjgg": "a pre-GGUF model (ggjt)",
    b"lmgg": "a pre-GGUF model (ggml)",
    b"PK\x03\x04": "a zip archive or PyTorch checkpoint",
    b"vers": "a text file, perhaps a Git LFS pointer instead of the model",
    b"<!DO": "a web page instead of the model",
    b"<htm": "a web page instead of the model",
}


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says before its tensor data."""

    version: int
    metadata: dict[str, MetadataValue]
    tensors: dict[str, TensorInfo]
    num_keys: int = 0
    keys_end: int = 0
    """Where the metadata ends, which begins at byte `KEYS_BEGIN`."""
    key_ends: dict[str, int] = field(default_factory=dict)
    """Where each key's value ends, in the file's order; it begins where the one before ends."""


def read_header(source: FileSource) -> GgufHeader:
    """Parse and validate the header through a short-lived memory map.

    Raises ModelFileError for a damaged file and UnsupportedModelError for a sound one that this
    reader does not cover (version 1, big endian).
    """
    if source.size_bytes < 24:
        raise ModelFileError(
            f"cannot open {source.path}: {source.size_bytes} bytes are too few for a GGUF header "
            "(24); download it again"
        )
    try:
        mapped = mmap.mmap(source.fileno, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot map {source.path}: {error}; is it a plain file?") from None
    guard()
    before = num_lost_pages()
    with mapped:
        found = _Parser(source, mapped).parse()
    if num_lost_pages() != before:
        raise ModelFileError(f"cannot read {source.path}: it was cut meanwhile; download it again")
    return found


class _Parser:
    """A cursor over the mapped header that never reads past the end."""

    def __init__(self, source: FileSource, data: mmap.mmap) -> None:
        self.source = source
        self.data = data
        self.size = len(data)
        self.position = 0

    def parse(self) -> GgufHeader:
        version = self._preamble()
        num_tensors = self._count("tensors", MAX_TENSORS, 24, self._scalar("Q"))
        num_keys = self._count("metadata keys", MAX_KEYS, 13, self._scalar("Q"))
        metadata: dict[str, MetadataValue] = {}
        key_ends: dict[str, int] = {}
        for _ in range(num_keys):
            key = self._text(self._bytes("a metadata key", MAX_KEY_BYTES), "a metadata key")
            if key in metadata:
                raise self._damaged(f"metadata key {key!r} appears twice")
            metadata[key] = self._value(key, self._scalar("I"))
            key_ends[key] = self.position
        keys_end = self.position
        raw = [self._tensor_record() for _ in range(num_tensors)]
        tensors = self._tensors(raw, self._alignment(metadata))
        return GgufHeader(version, metadata, tensors, num_keys, keys_end, key_ends)

    def _preamble(self) -> int:
        magic = self.data[:4]
        if magic != b"GGUF":
            what = _IMPOSTORS.get(magic, f"the first bytes are {magic!r}, not b'GGUF'")
            raise ModelFileError(
                f"cannot open {self.source.path}: not a GGUF file ({what}); give a .gguf file, "
                "e.g. one made by llama.cpp's convert_hf_to_gguf.py"
            )
        self.position = 4
        version = int(self._scalar("I"))
        if version in (2, 3):
            return version
        if version & 0xFFFF == 0 and version:
            found, remedy = "big-endian GGUF", "convert it with gguf-py's gguf_convert_endian.py"
        elif version == 1:
            found, remedy = "GGUF version 1", "convert the original model again"
        else:
            found, remedy = f"GGUF version {version}", "update EdgeSpec, or convert it again"
        raise UnsupportedModelError(
            f"cannot open {self.source.path}: it is {found}, and versions 2 and 3 in little "
            f"endian are read; {remedy}"
        )

    def _damaged(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"cannot open {self.source.path}: {what}; the file is damaged or cut short "
            f"({self.size} bytes), download it again"
        )

    def _need(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.size - self.position:
            raise self._damaged(
                f"{what} at byte {self.position} needs {num_bytes} bytes and "
                f"{self.size - self.position} are left"
            )

    def _scalar(self, code: str) -> int:
        layout = "<" + code
        size = struct.calcsize(layout)
        self._need(size, "a number")
        (value,) = struct.unpack_from(layout, self.data, self.position)
        self.position += size
        return value  # type: ignore[no-any-return]

    def _count(self, what: str, most: int, least_bytes: int, count: int) -> int:
        if count > most:
            raise self._damaged(f"{count} {what} are claimed (at most {most} make sense)")
        self._need(count * least_bytes, f"{count} {what}")
        return count

    def _bytes(self, what: str, most: int) -> bytes:
        length = self._scalar("Q")
        if length > most:
            raise self._damaged(f"{what} claims {length} bytes (at most {most} make sense)")
        self._need(length, what)
        self.position += length
        return self.data[self.position - length : self.position]

    def _text(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"{what} is not UTF-8: {raw[:40]!r}") from None

    def _value(self, key: str, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self._bytes(f"the value of {key!r}", MAX_STRING_BYTES).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self._damaged(f"metadata key {key!r} has unknown value type {kind}")
        value = self._scalar(_SCALARS[kind])
        if kind != _BOOL:
            return value
        if value > 1:
            raise self._damaged(f"metadata key {key!r} is a bool with value {value}")
        return bool(value)

    def _array(self, key: str) -> MetadataValue:
        kind = self._scalar("I")
        count = self._scalar("Q")
        what = f"array elements in {key!r}"
        if kind == _STRING:
            return self._strings(key, self._count(what, MAX_ARRAY_LENGTH, 8, count))
        if kind not in _SCALARS:
            nested = "nested arrays" if kind == _ARRAY else f"elements of unknown type {kind}"
            raise self._damaged(f"metadata key {key!r} holds {nested}")
        dtype = np.dtype("<" + _SCALARS[kind]) if kind != _BOOL else np.dtype(np.bool_)
        self._count(what, MAX_ARRAY_LENGTH, dtype.itemsize, count)
        begin, self.position = self.position, self.position + count * dtype.itemsize
        return np.frombuffer(self.data[begin : self.position], dtype)

    def _strings(self, key: str, count: int) -> StringArray:
        # The hot loop of opening a file: 150k strings take about 30 ms, so nothing else in it.
        start = position = self.position
        offsets = array("Q")
        append, unpack, data = offsets.append, struct.Struct("<Q").unpack_from, self.data
        try:
            for _ in range(count):
                append(position + 8)
                position += 8 + unpack(data, position)[0]
        except (struct.error, OverflowError, IndexError):
            position = self.size + 1
        if position > self.size or position - start >= 1 << 32:
            raise self._damaged(f"the {count} strings in {key!r} run past the end of the file")
        self.position = position
        begins = (np.frombuffer(offsets, np.uint64) - np.uint64(start)).astype(np.uint32)
        return StringArray(self.source, start, position - start, begins)

    def _tensor_record(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        raw = self._bytes("a tensor name", MAX_TENSOR_NAME_BYTES)
        name = self._text(raw, "a tensor name")
        num_dims = self._scalar("I")
        if not 1 <= num_dims <= 4:
            raise self._damaged(f"tensor {name!r} has {num_dims} dimensions (1 to 4 are possible)")
        dims = [self._scalar("Q") for _ in range(num_dims)]
        type_id = self._scalar("I")
        offset = self._scalar("Q")
        if min(dims) == 0 or max(dims) >= 1 << 48:
            raise self._damaged(f"tensor {name!r} has impossible dimensions {dims}")
        if type_id not in _TENSOR_TYPES:
            raise self._damaged(f"tensor {name!r} has unknown type number {type_id}")
        return name, tuple(reversed(dims)), _TENSOR_TYPES[type_id], offset

    def _alignment(self, metadata: dict[str, MetadataValue]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            not isinstance(alignment, int)
            or not 1 <= alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._damaged(f"general.alignment is {alignment!r}, not a power of two")
        return alignment

    def _tensors(
        self, raw: list[tuple[str, tuple[int, ...], TensorType, int]], alignment: int
    ) -> dict[str, TensorInfo]:
        begin = -(-self.position // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in raw:
            if name in tensors:
                raise self._damaged(f"tensor {name!r} appears twice")
            if shape[-1] % kind.block_size:
                raise self._damaged(
                    f"tensor {name!r} is {kind.name} with {shape[-1]} columns, not a multiple "
                    f"of {kind.block_size}"
                )
            size = kind.row_bytes(shape[-1])
            for rows in shape[:-1]:
                size *= rows
            if offset % alignment:
                raise self._damaged(f"tensor {name!r} is not aligned to {alignment} bytes")
            if begin + offset + size > self.size:
                raise self._damaged(
                    f"tensor {name!r} ends at byte {begin + offset + size}, past the end"
                )
            tensors[name] = TensorInfo(name, shape, kind, begin + offset, size)
        for one, two in pairwise(sorted(tensors.values(), key=lambda info: info.offset)):
            if one.offset + one.size_bytes > two.offset:
                raise self._damaged(f"tensors {one.name!r} and {two.name!r} overlap")
        return tensors
