"""The native CPU backend: a GGUF model on our own kernels."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Capabilities, Logits, Progress, Target, TokenTree
from edgespec.backends.native import session
from edgespec.backends.native.kernels import attention, forward, isa, row_ops
from edgespec.backends.native.kernels.tile import FORMATS
from edgespec.backends.native.weights import TYPE_CODES, Weights
from edgespec.errors import BackendError
from edgespec.memory.arena import BLOCK, KvArena
from edgespec.memory.plan import Plan
from edgespec.models.file import ModelFile

_ONE_REGION = threading.Lock()
"""Numba's work queue allows one parallel region at a time in a process."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the committed keys and values."""

    length: int
    blocks: list[NDArray[np.uint8]]


class NativeTarget(Target):
    """One open model; see `kernels/tile.py` for how its weights lie in memory."""

    capabilities = Capabilities(name="native", bit_exact_rows=True, trees=True)

    def __init__(self, file: ModelFile, plan: Plan, progress: Progress | None = None) -> None:
        spec = file.spec
        super().__init__(spec, plan.context_length, plan.max_nodes)
        self._isa = isa.chosen()
        self._threads = plan.threads
        self._chunk = max(plan.prefill_chunk, plan.max_nodes)
        self._weights = Weights(file, progress)
        self._shape = session.shape_of(spec)
        factors = file.matrix_f32("rope_freqs.weight").ravel() if spec.rope_factors else None
        self._frequencies = session.rope_frequencies(spec, factors)
        self._scratch = session.allocate(
            spec, plan.context_length, plan.max_nodes, self._chunk, plan.threads
        )
        self._arena = KvArena(
            spec.num_layers, spec.num_kv_heads, spec.head_dim, plan.context_length
        )
        self._ops = np.array(row_ops.table(), dtype=np.int64)
        self._tiles: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._nodes = _NodeTables(self._chunk, plan.max_nodes)

    @property
    def prefill_chunk(self) -> int:
        return self._chunk

    def allocated_bytes(self) -> dict[str, int]:
        """What this target has allocated, by the names of the plan's footprint."""
        logits = self._scratch.buffers.logits.nbytes
        return {
            "weights": self._weights.size_bytes,
            "KV cache": self._arena.size_bytes,
            "logits": logits,
            "activations": session.size_bytes(self._scratch) - logits + self._nodes.size_bytes,
        }

    def _forward(self, tree: TokenTree, rows: Literal["all", "last", "none"]) -> Logits:
        num_nodes = len(tree)
        self._arena.reserve(self.length + num_nodes)
        for node, token in enumerate(tree.tokens):
            self._weights.embedding.unpack_row(int(token), self._scratch.buffers.stream[node])
        nodes = self._nodes.describe(tree, self.length)
        first, count = {"all": (0, num_nodes), "last": (num_nodes - 1, 1), "none": (0, 0)}[rows]
        with _ONE_REGION:
            numba.set_num_threads(min(self._threads, numba.config.NUMBA_NUM_THREADS))
            self._run(nodes, self.spec.num_layers, 0, num_nodes)
            if count:
                self._run(nodes, 0, first, count)
        logits: Logits = self._scratch.buffers.logits[:count, : self.spec.vocab_size]
        return logits

    def _run(self, nodes: forward.Tree, num_layers: int, first: int, num_rows: int) -> None:
        forward.run(
            self._shape,
            self._weights.tables,
            self._frequencies,
            self._ops,
            *self._tiles_for(num_rows),
            self._kernel_arena(),
            nodes,
            *self._scratch,
            num_layers,
            first,
            num_rows,
            self._threads,
        )

    def _kernel_arena(self) -> forward.Arena:
        arena = self._arena
        return forward.Arena(
            blocks=arena.addresses,
            block=BLOCK,
            num_heads=arena.num_kv_heads,
            plane_bytes=arena.plane_bytes,
            key_tile_bytes=arena.key_tile_bytes,
            value_bytes=arena.value_bytes,
        )

    def _tiles_for(self, num_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Addresses and sizes of the tile functions of all types in use, for this many nodes."""
        found = self._tiles.get(num_nodes)
        if found is None:
            addresses = np.zeros(len(FORMATS), np.int64)
            sizes = np.ones(len(FORMATS), np.int64)
            for kind in self._weights.kinds:
                form = FORMATS[kind]
                size = next((size for size in form.sizes if size >= num_nodes), form.sizes[-1])
                addresses[TYPE_CODES[kind]] = isa.tile_address(self._isa, kind, size)
                sizes[TYPE_CODES[kind]] = size
            found = self._tiles[num_nodes] = (addresses, sizes)
        return found

    def _commit(self, path: Sequence[int]) -> None:
        arena = self._kernel_arena()
        for place, node in enumerate(path):
            if node != place:  # ascending, so a source is read before it is overwritten
                attention.move_kv(
                    arena,
                    self.spec.num_layers,
                    self.spec.head_dim,
                    self.length + node,
                    self.length + place,
                )

    def _truncate(self, length: int) -> None:
        self._arena.release(length)

    def _close(self) -> None:
        self._arena.release(0)
        del self._weights, self._scratch, self._tiles, self._nodes

    def snapshot(self) -> Snapshot:
        return Snapshot(self.length, self._arena.copy_blocks(self.length))

    def restore(self, snapshot: Any) -> None:
        if not isinstance(snapshot, Snapshot):
            raise BackendError(f"a native target cannot restore a {type(snapshot).__name__}")
        self._arena.load_blocks(snapshot.blocks)
        self.length = snapshot.length
        self._pending = 0


class _NodeTables:
    """Arrays that describe one tree to the kernels, allocated once."""

    def __init__(self, max_rows: int, max_nodes: int) -> None:
        self._depth = np.zeros(max_rows, np.int32)
        self._run = np.zeros(max_rows, np.int32)
        self._extra_start = np.zeros(max_rows + 1, np.int32)
        self._extra = np.zeros(
            max(1, max_nodes * max_nodes), np.int32
        )  # a prefill chain needs none

    @property
    def size_bytes(self) -> int:
        arrays = (self._depth, self._run, self._extra_start, self._extra)
        return sum(array.nbytes for array in arrays)

    def describe(self, tree: TokenTree, length: int) -> forward.Tree:
        attention.describe_tree(
            tree.parents, self._depth, self._run, self._extra_start, self._extra
        )
        return forward.Tree(length, self._depth, self._run, self._extra_start, self._extra)
