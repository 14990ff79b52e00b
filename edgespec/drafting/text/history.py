"""What this user's replies were made of, kept between runs.

    offset  bytes
    0       8      magic "EDGEHIST"
    8       4 x 3  version, size of the vocabulary, tokens read (modulo 2**30)
    20      16     fingerprint of the vocabulary
    36      rows, as edgespec/drafting/tables/followers.py describes them
    after   16     BLAKE2b of everything before

One file for each vocabulary, of fixed size, where `user_data.py` says; numbers are little-endian.
It holds hashes of short contexts and the tokens that followed them, of replies and not of prompts;
the oldest fade. A file is hostile until checked: one that is damaged is told of once and not used.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tables.followers import CHECK, FIRST, TOTAL
from edgespec.system.jit import kernel
from edgespec.system.user_data import data_folder, make_private, write_private

ORDERS = 4
"""The longest context."""
WAYS = 4
"""Followers kept of each context."""
COLUMNS = FIRST + 2 * WAYS
VERSION = 1
_NUM_ROWS = 8192
_HEAD = struct.Struct("<8s3I16s")
_MAGIC = b"EDGEHIST"
_DIGEST_BYTES = 16


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


class History:
    """A table of followers with a file behind it, or none."""

    size_bytes = _NUM_ROWS * COLUMNS * 4

    def __init__(self, vocabulary: bytes | None = None, vocab_size: int = 0) -> None:
        """Read the file of the vocabulary with this fingerprint; without one, keep nothing."""
        self.rows: NDArray[np.int32] = np.zeros((_NUM_ROWS, COLUMNS), np.int32)
        self.num_tokens = 0
        self._vocabulary, self._vocab_size = vocabulary, vocab_size
        self._path = None if vocabulary is None else _place(vocabulary)
        self._num_saved = 0
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def _read(self, path: Path) -> None:
        size = _HEAD.size + self.size_bytes + _DIGEST_BYTES
        try:
            with path.open("rb") as file:
                raw = file.read(size + 1)
        except OSError:
            return  # it cannot be read: that only costs learning again
        content, digest = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
        if len(raw) == size and digest == _digest(content) and self._take(content):
            return
        print(
            f"edgespec: {path} is damaged or of another version; starting a new history",
            file=sys.stderr,
        )

    def _take(self, content: bytes) -> bool:
        """Use what a file holds, if it can be this vocabulary's history."""
        magic, version, vocab_size, num_tokens, vocabulary = _HEAD.unpack_from(content)
        ours = (_MAGIC, VERSION, self._vocab_size, self._vocabulary)
        rows = np.frombuffer(content, "<i4", offset=_HEAD.size).astype(np.int32)
        rows = rows.reshape(self.rows.shape)
        if (magic, version, vocab_size, vocabulary) != ours or first_bad_row(rows, vocab_size) >= 0:
            return False
        self.rows[:] = rows
        self.num_tokens = self._num_saved = num_tokens % 2**30
        return True

    def save(self) -> None:
        """Write the file if there is something new; a folder that cannot be written keeps none."""
        if self._path is None or self._vocabulary is None or self.num_tokens == self._num_saved:
            return
        head = _HEAD.pack(_MAGIC, VERSION, self._vocab_size, self.num_tokens, self._vocabulary)
        content = head + self.rows.astype("<i4").tobytes()
        with suppress(OSError):
            make_private(self._path.parent)
            write_private(self._path, [content, _digest(content)])
            self._num_saved = self.num_tokens


def _place(vocabulary: bytes) -> Path | None:
    """The file of a vocabulary; None when the user wants none."""
    folder = data_folder()
    return None if folder is None else folder / "history" / f"{vocabulary.hex()}.store"


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()
