"""What a kernel is told so that it computes a native target's passes without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import whole_pass as w
from edgespec.backends.native.node_tables import NodeTables
from edgespec.backends.native.program import Program
from edgespec.backends.native.scratch import Scratch
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.weights import PackedMatrix, RowsOnDisk
from edgespec.backends.passes import CompiledPass
from edgespec.system.addresses import AddressTable, address_of


class WholePasses:
    """The table of `kernels/whole_pass.py`, filled once but for the sequence and the threads."""

    def __init__(
        self,
        base: NDArray[np.int64],
        nodes: NodeTables,
        scratch: Scratch,
        program: Program,
        embedding: PackedMatrix | RowsOnDisk,
        scale: float,
        tiles_for: Callable[[int], NDArray[np.int64]],
        max_nodes: int,
    ) -> None:
        self._table = table = AddressTable(w.NUM_WORDS)
        self._scratch = scratch
        self._tokens = np.zeros(max_nodes, np.int32)
        self._parents = np.zeros(max_nodes, np.int16)
        self._path = np.zeros(max_nodes, np.int32)
        self._tiles = np.stack([tiles_for(count) for count in range(1, w.MOST_TILES + 1)])
        bound: dict[int, NDArray[Any]] = {
            w.BASE: base, w.TOKENS: self._tokens, w.PARENTS: self._parents, w.PATH: self._path,
            w.TILES: self._tiles, w.STREAM: scratch.stream,
        }  # fmt: skip
        bound |= zip((w.NODES, w.EXTRA, w.PARTS, w.SLOTS), nodes.of_one, strict=True)
        for place, array in bound.items():
            table.bind(place, array)
        words = table.words
        words[w.FIRST_STAGE], words[w.LAST_STAGE] = program.starts[0], program.starts[-1]
        words[w.NUM_LAYERS] = len(program.starts) - 1
        words[w.SCALE_BITS] = float_bits(scale) if scale != 1.0 else 0
        layout = embedding.format.layout
        words[w.LAYOUT : w.EMBEDDING] = layout._replace(unit=float_bits(layout.unit))
        words[w.EMBEDDING :] = embedding.places

    def over(
        self, addresses: NDArray[np.int64], head: tuple[int, int], threads: int
    ) -> CompiledPass:
        """Passes over the sequence with blocks at these addresses, on so many threads; `head` are
        the first of its stages and the one after the last.
        """
        words = self._table.words
        self._table.bind(w.BLOCKS, addresses)
        words[w.HEAD_FIRST : w.HEAD_LAST + 1] = head
        words[w.THREADS] = threads
        return CompiledPass(
            self._table.address,
            address_of(w.forward),
            address_of(w.commit),
            self._tokens,
            self._parents,
            self._path,
            self._scratch.logits,
            self._scratch.maxima,
        )

    @property
    def size_bytes(self) -> int:
        own = (self._tokens, self._parents, self._path, self._tiles, self._table.words)
        return sum(array.nbytes for array in own)
