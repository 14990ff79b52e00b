"""What a kernel is told so that it computes a native target's passes without Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import whole_pass as w
from edgespec.backends.native.node_tables import NodeTables
from edgespec.backends.native.program import Program
from edgespec.backends.native.scratch import Scratch
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.weights import PackedMatrix, RowsOnDisk
from edgespec.backends.passes import CompiledPass, TokenTree
from edgespec.backends.sequence import KvSequence
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
        self._words = table.words.data
        """The same: one word of these is written sooner than one of an array."""
        self._addresses: NDArray[np.int64] | None = None
        """The last sequence's, which the table knows."""
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

    def point(
        self, sequence: KvSequence, num_tokens: int, head: tuple[int, int], threads: int
    ) -> None:
        """Passes are over this sequence, which grows by so many tokens, on so many threads; `head`
        are the first of its stages and the one after the last.
        """
        sequence.early = None
        sequence.state.reserve(sequence.length, sequence.length + num_tokens)
        addresses = sequence.state.addresses
        if addresses is not self._addresses:
            self._table.bind(w.BLOCKS, addresses)
            self._addresses = addresses
        words = self._words
        words[w.HEAD_FIRST], words[w.HEAD_LAST] = head
        words[w.THREADS] = threads

    def compute(self, tree: TokenTree, length: int) -> int:
        """One pass, over a tree on top of so many positions; returns its number of nodes."""
        num_nodes = len(tree.tokens)
        self._tokens[:num_nodes], self._parents[:num_nodes] = tree.tokens, tree.parents
        w.compute(self._forward, self._table.address, num_nodes, length)
        return num_nodes

    @cached_property
    def _forward(self) -> int:
        return address_of(w.forward)

    @property
    def entries(self) -> CompiledPass:
        """How a kernel computes them."""
        return CompiledPass(
            self._table.address,
            self._forward,
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
