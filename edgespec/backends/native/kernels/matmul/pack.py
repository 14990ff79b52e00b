"""Repack weights from a file's own blocks into tiles (see `tile.py`).

No value changes: every quantised integer and every scale keeps its bits; only their places do.
Weights of grid types take the place of their entry in the grid.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from edgespec.backends.native.kernels.codegen import isa
from edgespec.models.gguf.codebooks import GRID_TYPES, grid
from edgespec.models.spec import TensorType

NUM_ARGUMENTS = 6


@cache
def packer(kind: TensorType) -> Callable[[int, int, int, int, int, int], None]:
    """The function that fills tiles of a type.

    It takes the address of the first raw row, the bytes from one row to the next, the number of
    tiles (of 16 rows each), that of groups of columns in a row, and the addresses of the first
    tile's weights and scales.
    """
    address = isa.address(isa.chosen(), "packers", function_name(kind))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * num_arguments(kind))(address)
    if kind not in GRID_TYPES:
        return function
    table = grid(kind).copy()  # kept by the function that is returned

    def with_grid(*arguments: int) -> None:
        function(*arguments, table.ctypes.data)

    return with_grid


def function_name(kind: TensorType) -> str:
    """What the function of a type is called."""
    return f"pack_{kind.name}"


def num_arguments(kind: TensorType) -> int:
    """Grid types are told where their grid is."""
    return NUM_ARGUMENTS + (kind in GRID_TYPES)
