"""Keys and values in a file: what a text's blocks hold, to be read back bit for bit.

    offset  bytes
    0       8      magic "EDGEKEYS"
    8       4 x 4  version, tokens, blocks, bytes of the note
    24      8      bytes of a block
    32      32     what the blocks are worth to: model, kernels and layout, hashed
    64      4 each the tokens whose keys and values these are
    then           the note, UTF-8
    then    8 each versions 2 and 4: the bytes of each block
    then    16 x   checksum of each block
    then    16     checksum of everything before
    next multiple of 4096: the blocks, each from a multiple of 64

Version 1 holds blocks of one size, one for every 256 tokens, version 2 blocks of several sizes,
what models with windows or states keep; its bytes of a block are 0. Versions 3 and 4 are the same
with quick checksums of blocks.

All numbers are little-endian. A file is hostile until checked: the header when it is opened, with
the file's length, each block when it is read. Checksums are BLAKE2b; with a secret key whoever does
not know it cannot make them. Quick ones are the CRC-32 of each quarter, which find accidents, as
BLAKE2b without a key does, and take a fifth of the time. Files are readable by their owner only and
appear whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import KvFileError
from edgespec.memory.kv.arena import ALIGNMENT, BLOCK
from edgespec.system.records import dataclass
from edgespec.system.whole_file import whole_file

VERSION, VERSION_OF_SIZES, QUICK = 1, 2, 2
"""The quick versions come `QUICK` later."""
PAGE_BYTES = 4096
_MAGIC = b"EDGEKEYS"
_HEAD = struct.Struct("<8s4IQ32s")
_DIGEST_BYTES = 16
_QUARTERS = struct.Struct("<4I")


@dataclass(frozen=True, slots=True)
class Outline:
    """What the bytes of a sequence are, so that they can be put back."""

    length: int
    """Positions committed."""
    firsts: tuple[int, ...]
    """The first position that the blocks of each shape of attention hold."""
    states: tuple[tuple[int, int], ...] = ()
    """Positions and parities of recurrent layers' states: checkpoints, then the one it is at."""


@dataclass(frozen=True, slots=True)
class KvHeader:
    """What a file says about its blocks."""

    kind: bytes
    """32 bytes: only where these are equal do the blocks mean the same."""
    block_bytes: int
    """Of each block; 0 where they have `sizes`."""
    ids: NDArray[np.int32]
    """Tokens whose keys and values the blocks hold, at positions 0, 1, ..."""
    note: str = ""
    sizes: tuple[int, ...] = ()
    """Bytes of each block, where they differ."""
    quick: bool = False
    """Whether the checksums of its blocks are quick ones."""

    @property
    def num_blocks(self) -> int:
        return len(self.sizes) or -(-len(self.ids) // BLOCK)

    @property
    def size_bytes(self) -> int:
        """Bytes of the header, padding included."""
        fixed = _HEAD.size + 4 * len(self.ids) + len(self.note.encode()) + 8 * len(self.sizes)
        return _round_up(fixed + _DIGEST_BYTES * (self.num_blocks + 1))

    def bytes_of(self, index: int) -> int:
        """Bytes of a block."""
        return self.sizes[index] if self.sizes else self.block_bytes

    def place(self, index: int) -> int:
        """Where a block starts in the file."""
        if self.sizes:
            return self.size_bytes + sum(map(_stride, self.sizes[:index]))
        return self.size_bytes + index * _stride(self.block_bytes)

    def pack(self, digests: Sequence[bytes], secret: bytes) -> bytes:
        """The header's bytes, without the padding."""
        note, sizes = self.note.encode(), np.array(self.sizes, "<u8").tobytes()
        version = (VERSION_OF_SIZES if sizes else VERSION) + (QUICK if self.quick else 0)
        head = _HEAD.pack(
            _MAGIC, version, len(self.ids), self.num_blocks, len(note), self.block_bytes, self.kind
        )
        told = b"".join([head, self.ids.astype("<i4").tobytes(), note, sizes, *digests])
        return told + _digest(told, secret)


@dataclass(frozen=True, slots=True)
class KvFile:
    """An open file whose header was checked; the blocks are checked as they are read."""

    path: Path
    header: KvHeader
    _digests: tuple[bytes, ...]
    _secret: bytes

    @classmethod
    def open(cls, path: Path, file: BinaryIO, secret: bytes = b"") -> Self:
        """Check the header of a file that is read by `file`; raises KvFileError, OSError."""
        whole = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise _damaged(path, "it does not begin as such files do")
        _, version, num_tokens, num_blocks, note_bytes, block_bytes, kind = _HEAD.unpack(head)
        last = VERSION_OF_SIZES + QUICK
        if not VERSION <= version <= last:
            raise KvFileError(
                f"{path} holds keys and values in version {version} of the format, and this build "
                f"reads {VERSION} to {last}; save it again"
            )
        quick = version > QUICK
        has_sizes = version - (QUICK if quick else 0) == VERSION_OF_SIZES
        sizes_bytes = 8 * num_blocks if has_sizes else 0
        told_bytes = 4 * num_tokens + note_bytes + sizes_bytes + _DIGEST_BYTES * num_blocks
        is_empty = not num_tokens or not num_blocks or bool(block_bytes) == bool(sizes_bytes)
        if told_bytes + _HEAD.size + _DIGEST_BYTES > whole or is_empty:
            raise _damaged(path, "its header tells of more than the file holds")
        told = file.read(told_bytes)
        if file.read(_DIGEST_BYTES) != _digest(head + told, secret):
            raise _damaged(path, "its header does not match its checksum")
        ids, rest = np.frombuffer(told[: 4 * num_tokens], "<i4"), told[4 * num_tokens :]
        note, rest = rest[:note_bytes].decode(errors="replace"), rest[note_bytes:]
        sizes = tuple(np.frombuffer(rest[:sizes_bytes], "<u8").tolist())
        header = KvHeader(kind, block_bytes, ids.astype(np.int32), note, sizes, quick)
        if num_blocks != header.num_blocks or whole != header.place(num_blocks):
            raise _damaged(path, f"it has {whole} bytes")
        rest = rest[sizes_bytes:]
        places = range(0, len(rest), _DIGEST_BYTES)
        return cls(path, header, tuple(rest[at : at + _DIGEST_BYTES] for at in places), secret)

    def read(self, file: BinaryIO, index: int, into: NDArray[np.uint8]) -> None:
        """Read block `index`; raises KvFileError when it is not what was written, OSError."""
        file.seek(self.header.place(index))
        if file.readinto(into.data) != self.header.bytes_of(index):  # type: ignore[attr-defined]
            raise _damaged(self.path, f"it ends in block {index}")
        self.check(index, into)

    def check(self, index: int, content: NDArray[np.uint8]) -> None:
        """Raise KvFileError when this is not what was written as block `index`."""
        if _block_digest(self.header, content.data, self._secret) != self._digests[index]:
            raise _damaged(self.path, f"block {index} does not match its checksum")


def write_kv(
    path: Path,
    header: KvHeader,
    blocks: Sequence[NDArray[np.uint8]],
    secret: bytes = b"",
    *,
    lasting: bool = True,
) -> int:
    """Write a file, whole or not at all; returns its bytes. It is on the disk before it takes its
    place, unless it need not be `lasting`. Raises OSError.
    """
    with whole_file(path, lasting=lasting) as file:
        digests = []
        for index, content in enumerate(blocks):
            file.seek(header.place(index))
            file.write(content.data)
            digests.append(_block_digest(header, content.data, secret))
        file.truncate(header.place(len(blocks)))
        file.seek(0)
        file.write(header.pack(digests, secret))
    return header.place(len(blocks))


def _stride(size: int) -> int:
    """Bytes from one block to the next."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _round_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _digest(data: bytes | memoryview, secret: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=secret).digest()


def _block_digest(header: KvHeader, data: memoryview, secret: bytes) -> bytes:
    if not header.quick:
        return _digest(data, secret)
    size = -(-len(data) // 4)
    return _QUARTERS.pack(*(zlib.crc32(data[at * size : (at + 1) * size]) for at in range(4)))


def _damaged(path: Path, why: str) -> KvFileError:
    return KvFileError(f"{path} is damaged: {why}; remove it and save it again")
