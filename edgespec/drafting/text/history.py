"""What this user's replies were made of, kept between runs.

One file for each vocabulary, of fixed size, where `user_data.py` says. It holds hashes of short
contexts and the tokens that followed them, of replies and not of prompts; the oldest fade.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.text.store import COLUMNS, Store, write_store
from edgespec.errors import StoreError
from edgespec.system.user_data import data_folder, make_private

_NUM_ROWS = 8192


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
        try:
            store = Store(path, self._vocabulary)
            if store.rows.shape != self.rows.shape:
                raise StoreError(f"{path} is not a history: it has {len(store.rows)} rows")
            self.rows[:] = store.rows
            self.num_tokens = self._num_saved = store.header.num_tokens % 2**30
        except StoreError as error:
            print(f"edgespec: {error} (starting a new history)", file=sys.stderr)

    def save(self) -> None:
        """Write the file if there is something new; a folder that cannot be written keeps none."""
        if self._path is None or self._vocabulary is None or self.num_tokens == self._num_saved:
            return
        with suppress(OSError):
            make_private(self._path.parent)
            write_store(self._path, self.rows, self.num_tokens, self._vocab_size, self._vocabulary)
            self._num_saved = self.num_tokens


def _place(vocabulary: bytes) -> Path | None:
    """The file of a vocabulary; None when the user wants none."""
    folder = data_folder()
    return None if folder is None else folder / "history" / f"{vocabulary.hex()}.store"
