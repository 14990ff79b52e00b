"""Attention's part of the kernels' table: where its loops are, in the table's order."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.backends.native.kernels.attention.spans import ROW_BLOCK

_FIRST = ("softmax", "combine", "turn", "store_key", "store_value", "put_query", "spread", "weigh")
"""Functions in the order of the table, before those for rows."""


def loop_table(kv_type: str, find: Callable[[str], int]) -> list[int]:
    """Addresses by name, 0 where a type needs none, and before those of scores and mixing the most
    rows they take at once.
    """
    sizes = [size for size in range(1, ROW_BLOCK + 1) if find(f"mix_{kv_type}_{size}")]
    entries = [find(f"{name}_{kv_type}") for name in _FIRST] + [sizes[-1]]
    for loop in ("scores", "mix"):
        for rows in range(1, ROW_BLOCK + 1):
            fitting = next((size for size in sizes if size >= rows), 0)
            entries.append(find(f"{loop}_{kv_type}_{fitting}") if fitting else 0)
    return entries
