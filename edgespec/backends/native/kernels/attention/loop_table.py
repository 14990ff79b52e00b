"""Attention's part of the kernels' table: where its loops are, in the table's order."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.backends.native.kernels.attention.spans import ROW_BLOCK
from edgespec.memory.kv.arena import LATENT

_FIRST = ("softmax", "combine", "turn", "store_key", "store_value", "put_query", "spread", "weigh")
"""Functions in the order of the table, before those for rows."""


def loop_table(kv_type: str, find: Callable[[str], int]) -> list[int]:
    """Addresses by name, 0 where a type needs none, and before those of scores and those of mixing
    the most rows they take at once.
    """
    numbers = "f16" if kv_type == LATENT else kv_type
    entries = [find(f"{name}_{numbers}") for name in _FIRST]
    for loop in (f"scores_{kv_type}", f"mix_{numbers}"):
        sizes = [size for size in range(1, ROW_BLOCK + 1) if find(f"{loop}_{size}")]
        entries.append(sizes[-1])
        for rows in range(1, ROW_BLOCK + 1):
            fitting = next((size for size in sizes if size >= rows), 0)
            entries.append(find(f"{loop}_{fitting}") if fitting else 0)
    return entries
