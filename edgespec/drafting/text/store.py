"""A datastore: a table of followers in a file, mapped into memory and read where it is needed.

    offset  bytes
    0       8      magic "EDGESTOR"
    8       4 x 4  version, longest context, followers of a context, size of the vocabulary
    24      8 x 2  rows, tokens read
    40      16     fingerprint of the vocabulary
    56      16     BLAKE2b of the rows
    72      16     BLAKE2b of the 72 bytes before
    4096           rows, as edgespec/drafting/tables/followers.py describes them

All numbers are little-endian. A file is hostile until checked: its header, its length, the checksum
and every row are looked at before a drafter sees it, in pieces, so that checking costs time (about
a second for each GiB) and no memory.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tables.followers import CHECK, FIRST, SET_ROWS, TOTAL
from edgespec.errors import StoreError
from edgespec.memory.plan.sizing import mapped_bytes
from edgespec.system.jit import kernel
from edgespec.system.lost_pages import guard
from edgespec.system.records import dataclass
from edgespec.system.user_data import write_private

VERSION = 1
ORDERS = 4
"""The longest context of a store."""
WAYS = 4
"""Followers kept of each context."""
COLUMNS = FIRST + 2 * WAYS
HEADER_BYTES = 4096
_MAGIC = b"EDGESTOR"
_HEAD = struct.Struct("<8s4I2Q16s16s")
_DIGEST_BYTES = 16
_PIECE_ROWS = 4096
_FAULT_BYTES = 128 * 1024
"""What a page fault may bring in: 64 KiB as a rule, 78 were seen on average."""
_LOOK_BYTES = 4 * 2**20
"""What looking at 64 places may bring in."""


@kernel("int32[:,:]", "int64", result="int64")
def first_bad_row(rows: NDArray[np.int32], vocab_size: int) -> int:
    """The first row that no table has, or -1."""
    num_ways = (rows.shape[1] - FIRST) // 2
    for row in range(len(rows)):
        if rows[row, CHECK] == 0:
            continue
        total = 0
        for way in range(num_ways):
            token, weight = rows[row, FIRST + way], rows[row, FIRST + num_ways + way]
            if token < -1 or token >= vocab_size or weight < 0 or (token < 0 and weight > 0):
                return row
            for other in range(way):
                if token >= 0 and rows[row, FIRST + other] == token:
                    return row
            total += weight
        if rows[row, TOTAL] < max(total, 1):
            return row
    return -1


@dataclass(frozen=True, slots=True)
class StoreHeader:
    """What a store says about itself."""

    num_rows: int
    num_tokens: int
    vocab_size: int
    vocabulary: bytes
    checksum: bytes

    def pack(self) -> bytes:
        """The header's bytes, padding included."""
        head = _HEAD.pack(
            _MAGIC, VERSION, ORDERS, WAYS, self.vocab_size, self.num_rows, self.num_tokens,
            self.vocabulary, self.checksum,
        )  # fmt: skip
        return (head + _digest(head)).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def unpack(cls, raw: bytes, path: Path) -> StoreHeader:
        """Read a header; raises StoreError when it is none or contradicts itself."""
        if len(raw) < HEADER_BYTES or not raw.startswith(_MAGIC):
            raise StoreError(
                f"{path} is not a datastore; build one with `edgespec store build FOLDER --vocab "
                "MODEL.gguf --out FILE`"
            )
        head = raw[: _HEAD.size]
        _, version, orders, ways, vocab, rows, tokens, vocabulary, checksum = _HEAD.unpack(head)
        if version != VERSION:
            raise StoreError(
                f"{path} is a datastore of version {version}, and this build reads {VERSION}; "
                "build it again with `edgespec store build`"
            )
        sound = raw[_HEAD.size : _HEAD.size + _DIGEST_BYTES] == _digest(head)
        shape = (orders, ways) == (ORDERS, WAYS) and rows > 0 and rows % SET_ROWS == 0
        if not sound or not shape or not vocab:
            raise _damaged(path, "its header contradicts itself")
        return cls(rows, tokens, vocab, vocabulary, checksum)


class Store:
    """An open, checked datastore."""

    def __init__(self, path: str | os.PathLike[str], vocabulary: bytes | None = None) -> None:
        """Open and check a file; raises StoreError when it is damaged, missing, or made for
        another vocabulary than that with this fingerprint.
        """
        self.path = Path(path)
        self.header = self._check(vocabulary)
        guard()  # what is gone drafts nothing
        with open(self.path, "rb") as file:
            # Copy-on-write: kernels take writeable arrays, and nothing is ever written.
            self._map = mmap.mmap(file.fileno(), self.size_bytes, access=mmap.ACCESS_COPY)
        rows = np.frombuffer(self._map, np.int32, offset=HEADER_BYTES)
        self.rows: NDArray[np.int32] = rows.reshape(self.header.num_rows, COLUMNS)
        self._num_faults = _page_faults()

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return HEADER_BYTES + self.header.num_rows * COLUMNS * 4

    def keep_small(self) -> None:
        """Give back the pages that were read before they could be more than were planned; the
        next look reads them again from the system's cache.

        Faults of the whole process are counted, so this is done too often rather than too late.
        """
        if (_page_faults() - self._num_faults) * _FAULT_BYTES > mapped_bytes() - _LOOK_BYTES:
            if hasattr(self._map, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)
            self._num_faults = _page_faults()

    def num_contexts(self) -> int:
        """Contexts that are known."""
        return sum(
            int(np.count_nonzero(self.rows[start : start + _PIECE_ROWS, CHECK]))
            for start in range(0, len(self.rows), _PIECE_ROWS)
        )

    def _check(self, vocabulary: bytes | None) -> StoreHeader:
        path = self.path
        try:
            with open(path, "rb") as file:
                header = StoreHeader.unpack(file.read(HEADER_BYTES), path)
                if vocabulary is not None and header.vocabulary != vocabulary:
                    raise StoreError(
                        f"{path} was built for another vocabulary than this model's; build it "
                        "again with `edgespec store build FOLDER --vocab` and this model"
                    )
                promised = HEADER_BYTES + header.num_rows * COLUMNS * 4
                found = os.fstat(file.fileno()).st_size
                if found != promised:
                    raise _damaged(path, f"it has {found} bytes where {promised} were promised")
                digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
                while raw := file.read(_PIECE_ROWS * COLUMNS * 4):
                    digest.update(raw)
                    rows = np.frombuffer(bytearray(raw), np.int32).reshape(-1, COLUMNS)
                    if first_bad_row(rows, header.vocab_size) >= 0:
                        raise _damaged(path, "it holds tokens or counts that cannot be")
        except OSError as error:
            raise StoreError(
                f"cannot open the datastore {path}: {error.strerror or error}; check the path, or "
                "build one with `edgespec store build`"
            ) from None
        if digest.digest() != header.checksum:
            raise _damaged(path, "its checksum is wrong")
        return header


def _page_faults() -> int:
    """Pages this process has asked the system for so far; 0 where it does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def write_store(
    path: Path, rows: NDArray[np.int32], num_tokens: int, vocab_size: int, vocabulary: bytes
) -> None:
    """Write a table as a store that only its owner can read, whole or not at all; raises OSError.

    rows int32 [a multiple of 4, COLUMNS].
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in _pieces(rows):
        digest.update(piece)
    header = StoreHeader(len(rows), num_tokens, vocab_size, vocabulary, digest.digest())
    write_private(path, chain([header.pack()], _pieces(rows)))


def _pieces(rows: NDArray[np.int32]) -> Iterator[bytes]:
    for start in range(0, len(rows), _PIECE_ROWS):
        yield rows[start : start + _PIECE_ROWS].astype("<i4").tobytes()


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        f"the datastore {path} is damaged: {what}; build it again with `edgespec store build`"
    )
