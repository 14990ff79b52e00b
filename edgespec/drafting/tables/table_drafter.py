"""What drafters share that look continuations up in a table of followers of contexts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tables.followers import FIRST, SET_ROWS
from edgespec.drafting.text_drafter import TextDrafter


def new_rows(max_bytes: int, num_ways: int) -> NDArray[np.int32]:
    """An empty table of at most `max_bytes`."""
    columns = FIRST + 2 * num_ways
    return np.zeros((max_bytes // (4 * columns * SET_ROWS) * SET_ROWS, columns), np.int32)


class TableDrafter(TextDrafter):
    """A text drafter whose store is one table of followers, which belongs to the text."""

    ways = 4
    """Followers kept of each context."""
    part = 1.0
    """Of the bytes, what the table may take."""

    def __init__(self, max_bytes: int = TextDrafter.default_bytes, *, source: int = 1) -> None:
        super().__init__(max_bytes, source=source)
        self._now = 0
        """What rows that are written now are stamped with: grows with the text."""
        self._rows = new_rows(int(self.part * (max_bytes - self._fixed_bytes)), self.ways)

    def _forget(self) -> None:
        self._rows.fill(0)
        self._now = 0

    def _feed(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super()._feed(tokens)
        self._now = (self._now + len(tokens)) % 2**30

    def shrink(self) -> int:
        """Start a table of half the size; what the old one knew is lost."""
        before = self._rows.nbytes
        if before >= 2 * self.least_bytes:
            self._proposal.forget()
            self._rows = new_rows(before // 2, self.ways)
        return before - self._rows.nbytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays: exact, at most `max_bytes`, and the same from the start."""
        return self._fixed_bytes + self._rows.nbytes
