"""The block tables of one sequence of a model whose layers differ in their attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.memory.kv.arena import BlockTable


class SequenceTables:
    """A table in the arena of each shape of attention; does to all what a `BlockTable` does."""

    def __init__(self, tables: Sequence[BlockTable]) -> None:
        self.tables = tuple(tables)

    def reserve(self, first: int, last: int) -> None:
        """Make positions `first` .. `last - 1` this sequence's own to write."""
        for table in self.tables:
            table.reserve(first, last)

    def release(self, positions: int) -> int:
        """Give back whole blocks past this many positions; returns how many bytes were freed."""
        return sum(table.release(positions) for table in self.tables)

    def fork(self, positions: int) -> SequenceTables:
        """Other tables that share the blocks of the first `positions` positions."""
        return SequenceTables([table.fork(positions) for table in self.tables])

    def contents(self, positions: int) -> list[NDArray[np.uint8]]:
        """The blocks that hold the first `positions` positions, in place, shape after shape."""
        return [block for table in self.tables for block in table.contents(positions)]

    def own_contents(self, first: int, last: int) -> list[NDArray[np.uint8]]:
        """The blocks that hold positions `first` .. `last - 1`, in place and the sequence's own."""
        return [block for table in self.tables for block in table.own_contents(first, last)]
