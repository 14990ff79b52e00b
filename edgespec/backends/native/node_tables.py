"""What the kernels are told about the trees of a pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Part
from edgespec.backends.native.kernels import attention, table
from edgespec.backends.native.kernels.spans import ROW_BLOCK
from edgespec.models.spec import ModelSpec


class NodeTables:
    """Arrays that describe the nodes of a pass and the texts they belong to, allocated once."""

    def __init__(self, spec: ModelSpec, max_rows: int, max_nodes: int, max_parts: int) -> None:
        self._group = spec.num_heads // spec.num_kv_heads
        self._nodes = np.zeros((max_rows + 1, table.NODE_COLUMNS), np.int32)
        # A prefill chain needs no extra ancestors.
        self._extra = np.zeros(max(1, max_nodes * max_nodes), np.int32)
        self._parts = np.zeros((max_parts + 1, table.PART_COLUMNS), np.int64)

    @property
    def size_bytes(self) -> int:
        return self._nodes.nbytes + self._extra.nbytes + self._parts.nbytes

    def fill(self, c: NDArray[np.int64]) -> None:
        """Enter the arrays in the kernels' table."""
        c[table.NODES] = self._nodes.ctypes.data
        c[table.EXTRA] = self._extra.ctypes.data
        c[table.PARTS] = self._parts.ctypes.data

    def describe(self, parts: Sequence[Part]) -> None:
        """Fill the arrays from a pass."""
        node = query = 0
        for part, (sequence, tree) in enumerate(parts):
            length = sequence.length
            self._parts[part] = (node, query, length, sequence.state.addresses.ctypes.data)
            attention.describe_tree(tree.parents, part, node, length, self._nodes, self._extra)
            node += len(tree)
            query += -(-len(tree) * self._group // ROW_BLOCK) * ROW_BLOCK
        self._parts[len(parts), table.FIRST_NODE] = node
