"""What the kernels are told about the nodes of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.attention import grouped_query
from edgespec.backends.native.kv_store import KvTables
from edgespec.backends.sequence import KvSequence


class Position(NamedTuple):
    """Where nodes stand that are described as what is committed already."""

    length: int
    """Positions before it."""
    state: KvTables
    early: None = None


class NodeRows(NamedTuple):
    """The nodes of one text's tree that a pass computes."""

    sequence: KvSequence | Position
    parents: NDArray[np.int16]
    """[n], of the whole tree."""
    slots: NDArray[np.int32]
    """[n], of the whole tree, from the committed length on."""
    wanted: NDArray[np.int32]
    """[rows], ascending."""


class NodeTables:
    """Arrays that describe the nodes of a pass and the texts they belong to, allocated once."""

    def __init__(self, max_rows: int, max_nodes: int, max_parts: int, num_shapes: int = 1) -> None:
        self._nodes = np.zeros((max_rows + 1, table.NODE_COLUMNS), np.int32)
        # A prefill chain needs no extra ancestors.
        self._extra = np.zeros(max(1, max_nodes * max_nodes), np.int32)
        # Sequences have blocks, and queries, of every shape of attention.
        self._parts = np.zeros((num_shapes, max_parts + 1, table.PART_COLUMNS), np.int64)
        self.in_order = np.arange(max(max_rows, max_nodes), dtype=np.int32)
        """0, 1, 2 ...: slots of a tree that has none yet, rows of one that is computed whole."""

    @property
    def size_bytes(self) -> int:
        tables = (self._nodes, self._extra, self._parts, self.in_order)
        return sum(array.nbytes for array in tables)

    def fill(self, tables: Sequence[NDArray[np.int64]]) -> None:
        """Enter the arrays in the tables of all shapes."""
        for c, own in zip(tables, self._parts, strict=True):
            c[table.NODES] = self._nodes.ctypes.data
            c[table.EXTRA] = self._extra.ctypes.data
            c[table.PARTS] = own.ctypes.data

    @property
    def of_one(self) -> tuple[NDArray[Any], ...]:
        """For a kernel that describes a pass over one sequence of the first shape: nodes, room for
        ancestors, parts, slots in order.
        """
        return self._nodes, self._extra, self._parts[0], self.in_order

    def describe(self, tables: Sequence[NDArray[np.int64]], parts: Sequence[NodeRows]) -> None:
        """Fill the arrays from a pass, and enter the number of its parts in the shapes' tables."""
        for shape, (c, own) in enumerate(zip(tables, self._parts, strict=True)):
            for part, (sequence, parents, slots, wanted) in enumerate(parts):
                grouped_query.describe_part(
                    c,
                    parents,
                    slots,
                    wanted,
                    part,
                    sequence.length,
                    sequence.state.tables[shape].addresses,
                    self._nodes,
                    self._extra,
                    own,
                )
