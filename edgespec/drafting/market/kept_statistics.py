"""How often drafts were right, kept between runs: numbers only, no text.

One file of a few KiB for each model and set of drafters, in the user's data folder:

    offset  bytes
    0       8      magic "EDGESTAT"
    8       4 x 2  version, sources
    16      16     fingerprint of the model and the drafters' names
    32      sources x 10 x 5 x 2 x 8   the table of edgespec/drafting/market/acceptance.py
    after   16     BLAKE2b of everything before

All numbers are little-endian. A file is hostile until checked: one that is damaged, or holds counts
that decay cannot leave, is told of once and not used.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.market.acceptance import MOST_COUNTED, AcceptanceStatistics
from edgespec.system.user_data import data_folder, make_private, write_private

VERSION = 2
_HEAD = struct.Struct("<8s2I16s")
_MAGIC = b"EDGESTAT"
_DIGEST_BYTES = 16


class KeptStatistics(AcceptanceStatistics):
    """Statistics with a file behind them, unless the user wants nothing kept."""

    def __init__(self, model: bytes, drafters: Sequence[str]) -> None:
        """Those of the model with this fingerprint, of earlier runs if there were any."""
        super().__init__(len(drafters) + 1)
        self._key = _digest(repr((model, tuple(drafters))).encode())
        folder = data_folder()
        self._path = None if folder is None else folder / "acceptance" / f"{self._key.hex()}.stats"
        if self._path is not None:
            self._read(self._path)
        self._saved = self.table.copy()

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                raw = file.read(_HEAD.size + self.table.nbytes + _DIGEST_BYTES + 1)
        except OSError:
            return  # there is none yet, or it cannot be read: both only cost learning again
        table = self._table_in(raw)
        if table is None:
            print(
                f"edgespec: {path} is damaged or of another version; starting new statistics",
                file=sys.stderr,
            )
        else:
            self.table[:] = table

    def _table_in(self, raw: bytes) -> NDArray[np.float64] | None:
        """The table in a file's bytes; None when they are not this file's."""
        content, digest = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
        head = _HEAD.pack(_MAGIC, VERSION, len(self.table), self._key)
        if len(content) != len(head) + self.table.nbytes or not content.startswith(head):
            return None
        table = np.frombuffer(content, "<f8", offset=len(head)).reshape(self.table.shape)
        possible = bool(((table >= 0) & (table <= MOST_COUNTED)).all())
        return table if possible and digest == _digest(content) else None

    def save(self) -> None:
        """Write the file if something was learnt; a folder that cannot be written keeps nothing."""
        if self._path is None or np.array_equal(self.table, self._saved):
            return
        head = _HEAD.pack(_MAGIC, VERSION, len(self.table), self._key)
        content = head + self.table.astype("<f8").tobytes()
        with suppress(OSError):
            make_private(self._path.parent)
            write_private(self._path, [content, _digest(content)])
            self._saved[:] = self.table

    @property
    def size_bytes(self) -> int:
        """Bytes of the table and of what the file holds."""
        return super().size_bytes + self._saved.nbytes


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()
