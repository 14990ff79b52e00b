"""Compile the kernels, or load them from the cache, before any weight is in memory."""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import attention, forward, row_ops, table


def warm_up() -> None:
    """Call every compiled function once on nothing: no layers, no rows, no heads."""
    integers = np.zeros(4, np.int32)
    attention.describe_tree(np.full(1, -1, np.int16), integers, integers, integers, integers)
    head = np.zeros(8, np.int64)
    empty = np.zeros(table.NUM_ENTRIES, np.int64)
    empty[table.HEAD_MATRIX] = head.ctypes.data
    row_ops.table()
    forward.run(empty, 0, 0, 0, 1)
    attention.move_kv(empty, 0, 0, 0)
