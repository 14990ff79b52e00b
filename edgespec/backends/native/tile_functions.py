"""Addresses of the functions that multiply by tiles, for the types of a model."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.backends.native.weights import TYPE_CODES
from edgespec.models.spec import TensorType


class _Typed(Protocol):
    @property
    def kinds(self) -> frozenset[TensorType]: ...


class TileFunctions:
    """By number of nodes, for the types of a model's weights and of its adapters."""

    def __init__(self, name: str, *parts: _Typed) -> None:
        self._isa, self._parts = name, parts
        self._found: dict[int, NDArray[np.int64]] = {}

    def for_nodes(self, num_nodes: int) -> NDArray[np.int64]:
        """Addresses, then sizes, of the tile functions of all types, for this many nodes."""
        found = self._found.get(num_nodes)
        if found is None:
            found = np.ones(2 * table.NUM_TYPES, np.int64)
            for kind in frozenset[TensorType]().union(*(part.kinds for part in self._parts)):
                form, code = FORMATS[kind], TYPE_CODES[kind]
                size = next((size for size in form.sizes if size >= num_nodes), form.sizes[-1])
                found[code] = isa.tile_address(self._isa, kind, size)
                found[table.NUM_TYPES + code] = size
            self._found[num_nodes] = found
        return found

    def forget(self) -> None:
        """Types have come."""
        self._found.clear()
