"""What drafters share that look continuations up in a table of followers of contexts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import NOW
from edgespec.drafting.tables.followers import FIRST, SET_ROWS, count_text
from edgespec.drafting.text_drafter import (
    KEYS,
    ROWS,
    WINDOW,
    TextDrafter,
    move_up,
    write_behind,
)
from edgespec.system.addresses import int32_line, int32_rows, int64_rows, word
from edgespec.system.jit import entry


def new_rows(max_bytes: int, num_ways: int) -> NDArray[np.int32]:
    """An empty table of at most `max_bytes`."""
    columns = FIRST + 2 * num_ways
    return np.zeros((max_bytes // (4 * columns * SET_ROWS) * SET_ROWS, columns), np.int32)


@entry
def feed_nothing(table: int, tokens: int, count: int) -> int:
    """The text grew, which teaches nothing but how it ends."""
    write_behind(table, tokens, count)
    return move_up(table, count)


@entry
def feed_rows(table: int, tokens: int, count: int) -> int:
    """Count each new token as a follower of the contexts before it."""
    begin = write_behind(table, tokens, count)
    text = int32_line(table, WINDOW)[: begin + count]
    count_text(int32_rows(table, ROWS), int64_rows(table, KEYS), text, begin, word(table, NOW))
    return move_up(table, count)


class TableDrafter(TextDrafter):
    """A text drafter whose store is one table of followers, which belongs to the text."""

    ways = 4
    """Followers kept of each context."""
    part = 1.0
    """Of the bytes, what the table may take."""
    is_shared = False
    """Whether the drafters of all sequences share one table: it outlives texts, then."""

    def __init__(self, max_bytes: int = TextDrafter.default_bytes, *, source: int = 1) -> None:
        super().__init__(max_bytes, source=source)
        self._set_rows(new_rows(int(self.part * (max_bytes - self._fixed_bytes)), self.ways))

    def _set_rows(self, rows: NDArray[np.int32]) -> None:
        self._rows = rows
        self.table.bind(ROWS, rows)

    def share(self, other: TableDrafter) -> None:
        """Read and write another drafter's table, of the same kind, from now on: what the model
        says after a context is as true of texts that are written beside this one.
        """
        self._forget_proposal()
        self._set_rows(other._rows)

    def _forget(self) -> None:
        self._rows.fill(0)
        self._now = 0

    def shrink(self) -> int:
        """Start a table of half the size; what the old one knew is lost."""
        before = self._rows.nbytes
        if before >= 2 * self.least_bytes:
            self._forget_proposal()
            self._set_rows(new_rows(before // 2, self.ways))
        return before - self._rows.nbytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays: exact, at most `max_bytes`, and the same from the start."""
        return self._fixed_bytes + self._rows.nbytes
