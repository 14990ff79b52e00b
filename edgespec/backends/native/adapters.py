"""Matrices between an exit and the head: from a layer's residual stream to what the last one's is
likely to be. Fitted by `edgespec adapt`, and read by drafts alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.backends.native.weights import PackedMatrix
from edgespec.models.adapter import Adapter
from edgespec.models.spec import TensorType

NOBODY = 0
"""As an address: the head comes right after the layer."""
_ROWS = 256
"""Rows of a file in memory at a time; whole tiles."""


class Adapters:
    """One packed matrix [dim, dim] f16 for each layer that has one."""

    def __init__(self, dim: int, file: Adapter | None = None) -> None:
        self._dim = dim
        self._matrices: dict[int, PackedMatrix] = {}
        self._rows: dict[int, NDArray[np.int64]] = {}
        for layer in () if file is None else file.layers:
            for first in range(0, dim, _ROWS):
                assert file is not None
                self.put(layer, first, file.rows(layer, first, min(first + _ROWS, dim)))

    def put(self, layer: int, first: int, rows: NDArray[np.float16]) -> None:
        """Fill rows [n, dim] of a layer's matrix from `first` on, a multiple of 16."""
        if layer not in self._matrices:
            matrix = PackedMatrix.allocate(FORMATS[TensorType.F16], self._dim, self._dim)
            self._matrices[layer], self._rows[layer] = matrix, matrix.describe()
        self._matrices[layer].pack_rows(first, np.ascontiguousarray(rows).view(np.uint8))

    def place(self, layer: int | None) -> int:
        """The address of the description of a layer's matrix, `NOBODY` for no layer; KeyError where
        it has none.
        """
        address: int = NOBODY if layer is None else self._rows[layer].ctypes.data
        return address

    def __contains__(self, layer: int) -> bool:
        return layer in self._matrices

    @property
    def kinds(self) -> frozenset[TensorType]:
        """Types of its matrices."""
        return frozenset({TensorType.F16} if self._matrices else ())

    @property
    def size_bytes(self) -> int:
        matrices = self._matrices.values()
        return sum(matrix.size_bytes for matrix in matrices)
