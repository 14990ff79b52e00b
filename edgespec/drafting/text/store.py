"""A datastore: a corpus and its suffix array in a file, mapped into memory and read where needed.

    offset  bytes
    0       8       magic "EDGESTOR"
    8       4 x 2   version, size of the vocabulary
    16      8 x 3   tokens, files read, files left out
    40      16      fingerprint of the vocabulary
    56      16      what the files were when they were read
    72      16      BLAKE2b of everything after the header
    88      16      BLAKE2b of the 88 bytes before
    4096    4 each  tokens; -1 stands before each file
    after   4 each  places in the text, in order of what is before them (`store_kernels.py`)

All numbers are little-endian. A file is hostile until checked: its header, its length, the checksum
and every number are looked at before a drafter sees it, in pieces, so that checking costs time
(about a second for each GiB) and no memory. An order that is none only finds less.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tables.followers import NOBODY
from edgespec.drafting.text.store_kernels import FOUND, MOST_FOUND, NUM_STORE_WORDS, ORDER, TEXT
from edgespec.drafting.text.store_kernels import VOCABULARY as VOCABULARY_SIZE
from edgespec.errors import StoreError
from edgespec.memory.plan.sizing import mapped_bytes
from edgespec.system.addresses import AddressTable
from edgespec.system.lost_pages import guard
from edgespec.system.ownership import is_kept_from_others
from edgespec.system.records import dataclass
from edgespec.system.user_data import write_private

VERSION = 2
HEADER_BYTES = 4096
BYTES_PER_TOKEN = 8
MOST_TOKENS = 2**30
_MAGIC = b"EDGESTOR"
_HEAD = struct.Struct("<8s2I3Q16s16s16s")
_DIGEST_BYTES = 16
_PIECE_TOKENS = 1 << 16
_FAULT_BYTES = 128 * 1024
"""What a page fault may bring in: 64 KiB as a rule, 78 were seen on average."""
_LOOK_BYTES = 4 * 2**20
"""What one search may bring in: it looks at some 60 places."""


@dataclass(frozen=True, slots=True)
class StoreHeader:
    """What a store says about itself."""

    num_tokens: int
    num_files: int
    num_skipped: int
    vocab_size: int
    vocabulary: bytes
    stamp: bytes
    """Names, sizes and times of change of the files, and how they were read, as a digest."""
    checksum: bytes = bytes(_DIGEST_BYTES)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return HEADER_BYTES + BYTES_PER_TOKEN * self.num_tokens

    def pack(self, checksum: bytes) -> bytes:
        """The header's bytes, padding included."""
        head = _HEAD.pack(
            _MAGIC, VERSION, self.vocab_size, self.num_tokens, self.num_files, self.num_skipped,
            self.vocabulary, self.stamp, checksum,
        )  # fmt: skip
        return (head + digest_of(head)).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def unpack(cls, raw: bytes, path: Path) -> StoreHeader:
        """Read a header; raises StoreError when it is none or contradicts itself."""
        if len(raw) < HEADER_BYTES or not raw.startswith(_MAGIC):
            raise StoreError(
                f"{path} is not a datastore; build one with `edgespec store build FOLDER --vocab "
                "MODEL.gguf --out FILE`"
            )
        head = raw[: _HEAD.size]
        _, version, vocab, tokens, files, skipped, vocabulary, stamp, checksum = _HEAD.unpack(head)
        if version != VERSION:
            raise StoreError(
                f"{path} is a datastore of version {version}, and this build reads {VERSION}; "
                "build it again with `edgespec store build`"
            )
        sound = raw[_HEAD.size : _HEAD.size + _DIGEST_BYTES] == digest_of(head)
        if not sound or not 0 < tokens <= MOST_TOKENS or not vocab:
            raise _damaged(path, "its header contradicts itself")
        return cls(tokens, files, skipped, vocab, vocabulary, stamp, checksum)

    @classmethod
    def read(cls, path: Path) -> StoreHeader:
        """The header of a file; raises StoreError when it has none, or cannot be read."""
        try:
            with open(path, "rb") as file:
                return cls.unpack(file.read(HEADER_BYTES), path)
        except OSError as error:
            raise _unread(path, error) from None


class Store:
    """An open, checked datastore; `table` is where kernels find it."""

    def __init__(self, path: str | os.PathLike[str], vocabulary: bytes | None = None) -> None:
        """Open and check a file; raises StoreError when it is damaged, missing, made for another
        vocabulary than that with this fingerprint, or others may change it once it was checked.
        """
        self.path = Path(path)
        guard()  # what is gone drafts nothing
        try:
            with open(self.path, "rb") as file:
                self.header = StoreHeader.unpack(file.read(HEADER_BYTES), self.path)
                self._check(file, vocabulary)
                # Copy-on-write: kernels take writeable arrays, and nothing is ever written.
                self._map = mmap.mmap(file.fileno(), self.size_bytes, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise _unread(self.path, error) from None
        both = np.frombuffer(self._map, np.int32, offset=HEADER_BYTES)
        self.text: NDArray[np.int32] = both[: self.header.num_tokens]
        self.order: NDArray[np.int32] = both[self.header.num_tokens :]
        self._found = np.zeros((MOST_FOUND, 3), np.int64)
        self.table = AddressTable(NUM_STORE_WORDS)
        self.table.bind(TEXT, self.text)
        self.table.bind(ORDER, self.order)
        self.table.bind(FOUND, self._found)
        self.table.words[VOCABULARY_SIZE] = self.header.vocab_size
        self._num_faults = _page_faults()

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self.header.size_bytes

    def keep_small(self) -> None:
        """Give back the pages that were read before they could be more than were planned; the
        next look reads them again from the system's cache.

        Faults of the whole process are counted, so this is done too often rather than too late.
        """
        if (_page_faults() - self._num_faults) * _FAULT_BYTES > mapped_bytes() - _LOOK_BYTES:
            if hasattr(self._map, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)
            self._num_faults = _page_faults()

    def _check(self, file: BinaryIO, vocabulary: bytes | None) -> None:
        path, header, status = self.path, self.header, os.fstat(file.fileno())
        if not is_kept_from_others(status):
            raise StoreError(
                f"other users may change the datastore {path} while it is used; copy it to a "
                "folder of your own"
            )
        if vocabulary is not None and header.vocabulary != vocabulary:
            raise StoreError(
                f"{path} was built for another vocabulary than this model's; build it again with "
                "`edgespec store build FOLDER --vocab` and this model"
            )
        if status.st_size != self.size_bytes:
            raise _damaged(
                path, f"it has {status.st_size} bytes where {self.size_bytes} were promised"
            )
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for least, most in ((NOBODY, header.vocab_size), (0, header.num_tokens)):
            for start in range(0, header.num_tokens, _PIECE_TOKENS):
                raw = file.read(4 * min(_PIECE_TOKENS, header.num_tokens - start))
                digest.update(raw)
                numbers = np.frombuffer(raw, "<i4")
                if not ((numbers >= least) & (numbers < most)).all():
                    raise _damaged(path, "it holds tokens or places that cannot be")
        if digest.digest() != header.checksum:
            raise _damaged(path, "its checksum is wrong")


def _unread(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot open the datastore {path}: {error.strerror or error}; check the path, or build "
        "one with `edgespec store build`"
    )


def _page_faults() -> int:
    """Pages this process has asked the system for so far; 0 where it does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def write_store(
    path: Path, header: StoreHeader, text: NDArray[np.int32], order: NDArray[np.int32]
) -> None:
    """Write a corpus and its order, both [header.num_tokens], as a store that only its owner can
    read, whole or not at all; raises OSError.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in _pieces(text, order):
        digest.update(piece)
    write_private(path, chain([header.pack(digest.digest())], _pieces(text, order)))


def _pieces(*arrays: NDArray[np.int32]) -> Iterator[bytes]:
    for array in arrays:
        for start in range(0, len(array), _PIECE_TOKENS):
            yield array[start : start + _PIECE_TOKENS].astype("<i4").tobytes()


def digest_of(raw: bytes) -> bytes:
    """BLAKE2b of some bytes, as long as the header's are."""
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        f"the datastore {path} is damaged: {what}; build it again with `edgespec store build`"
    )
