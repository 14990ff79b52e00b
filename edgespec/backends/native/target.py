"""The native CPU backend: a GGUF model on our own kernels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Capabilities, Logits, Part, Progress, Rows, Target
from edgespec.backends.native import session
from edgespec.backends.native.kernels import isa, kv_places, table
from edgespec.backends.native.kernels.tile import FORMATS
from edgespec.backends.native.limits import refusal
from edgespec.backends.native.node_tables import NodeTables
from edgespec.backends.native.pace import Pace
from edgespec.backends.native.team import Team
from edgespec.backends.native.weights import TYPE_CODES, Weights
from edgespec.backends.sequence import KvSequence
from edgespec.cache import code_key
from edgespec.errors import BackendError, UnsupportedModelError
from edgespec.memory.arena import BlockTable, KvArena
from edgespec.memory.plan import Plan
from edgespec.models.file import ModelFile


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the committed keys and values."""

    length: int
    blocks: list[NDArray[np.uint8]]


class NativeTarget(Target):
    """One open model; see `kernels/tile.py` for how its weights lie in memory."""

    capabilities = Capabilities(name="native", bit_exact_rows=True, trees=True, sequences=True)

    def __init__(self, file: ModelFile, plan: Plan, progress: Progress | None = None) -> None:
        spec = file.spec
        why_not = refusal(spec, file.tensors.values())
        if why_not:
            raise UnsupportedModelError(why_not)
        self.arena = self._arena = KvArena(
            spec.num_layers,
            spec.num_kv_heads,
            spec.head_dim,
            plan.context_length,
            plan.kv_type,
            plan.sequences,
        )
        super().__init__(spec, plan.context_length, plan.max_nodes, plan.sequences)
        self._isa = isa.chosen()
        self._chunk = max(plan.prefill_chunk, plan.max_nodes)
        self._weights = Weights(file, progress)
        factors = file.matrix_f32("rope_freqs.weight").ravel() if spec.rope_factors else None
        self._frequencies = session.rope_frequencies(spec, factors)
        self._scratch = session.Scratch.allocate(
            spec,
            plan.context_length,
            plan.max_nodes,
            self._chunk,
            plan.threads,
            plan.kv_type,
            plan.sequences,
        )
        self._nodes = NodeTables(spec, self._chunk, plan.max_nodes, plan.sequences)
        self._tiles: dict[int, NDArray[np.int64]] = {}
        self._table = np.zeros(table.NUM_ENTRIES, np.int64)
        session.fill_shape(self._table, spec, plan.max_nodes, plan.sequences)
        session.fill_arena(self._table, self._arena, spec.head_dim)
        session.fill_scratch(self._table, self._scratch)
        self._weights.fill(self._table)
        self._table[table.FREQUENCIES] = self._frequencies.ctypes.data
        self._nodes.fill(self._table)
        self._team = Team(self._table, plan.threads)
        self._pace = Pace(self._team.size)
        self._num_rows = 0

    @property
    def prefill_chunk(self) -> int:
        return self._chunk

    @property
    def kv_kind(self) -> str:
        arena = self._arena
        return repr((code_key(), self._isa, arena.kv_type, arena.layout, arena.block_bytes))

    def allocated_bytes(self) -> dict[str, int]:
        """What this target has allocated, by the names of the plan's footprint."""
        return {
            "weights": self._weights.size_bytes,
            "KV cache": self._arena.size_bytes,
            "logits": self._scratch.logits.nbytes + self._scratch.maxima.nbytes,
            "activations": self._scratch.activation_bytes,
            "node scratch": self._scratch.attention_bytes + self._nodes.size_bytes,
        }

    def _open_sequence(self) -> BlockTable:
        return self._arena.table()

    def _fork(self, sequence: KvSequence, length: int) -> BlockTable:
        forked: BlockTable = sequence.state.fork(length)
        return forked

    def _forward(self, parts: Sequence[Part], rows: Rows) -> Logits:
        num_nodes = 0
        for sequence, tree in parts:
            sequence.state.reserve(sequence.length, sequence.length + len(tree))
            for node, token in enumerate(tree.tokens, num_nodes):
                self._weights.embedding.unpack_row(int(token), self._scratch.stream[node])
            num_nodes += len(tree)
        self._nodes.describe(parts)
        self._table[table.NUM_PARTS] = len(parts)
        first, count = {"all": (0, num_nodes), "last": (num_nodes - 1, 1), "none": (0, 0)}[rows]
        start = time.perf_counter()
        self._run(self.spec.num_layers, 0, num_nodes)
        if count:
            self._run(0, first, count)
        self._pace.observe(num_nodes, time.perf_counter() - start)
        self._num_rows = count
        return self._scratch.logits[:count, : self.spec.vocab_size]

    @property
    def maxima(self) -> Logits:
        self._check_open()
        return self._scratch.maxima[: self._num_rows]

    def _run(self, num_layers: int, first: int, num_rows: int) -> None:
        self._table[table.TILES :] = self._tiles_for(num_rows)
        self._team.run(num_layers, first, num_rows, self._pace.threads)

    def _tiles_for(self, num_nodes: int) -> NDArray[np.int64]:
        """Addresses, then sizes, of the tile functions of all types, for this many nodes."""
        found = self._tiles.get(num_nodes)
        if found is None:
            found = np.ones(2 * table.NUM_TYPES, np.int64)
            for kind in self._weights.kinds:
                form, code = FORMATS[kind], TYPE_CODES[kind]
                size = next((size for size in form.sizes if size >= num_nodes), form.sizes[-1])
                found[code] = isa.tile_address(self._isa, kind, size)
                found[table.NUM_TYPES + code] = size
            self._tiles[num_nodes] = found
        return found

    def _commit(self, sequence: KvSequence, path: Sequence[int]) -> None:
        blocks, length = sequence.state.addresses.ctypes.data, sequence.length
        for place, node in enumerate(path):
            if node != place:  # ascending, so a source is read before it is overwritten
                kv_places.move_kv(
                    self._table, blocks, self.spec.num_layers, length + node, length + place
                )

    def _truncate(self, sequence: KvSequence, length: int) -> None:
        sequence.state.release(length)

    def _close(self) -> None:
        self._team.close()
        self.own.state.release(0)
        del self._weights, self._scratch, self._tiles, self._nodes

    def snapshot(self) -> Snapshot:
        blocks = [content.copy() for content in self.own.state.contents(self.length)]
        return Snapshot(self.length, blocks)

    def restore(self, snapshot: Any) -> None:
        if not isinstance(snapshot, Snapshot):
            raise BackendError(f"a native target cannot restore a {type(snapshot).__name__}")
        own = self.own.state.own_contents(0, snapshot.length)
        for content, saved in zip(own, snapshot.blocks, strict=True):
            content[:] = saved
        self.own.filled(snapshot.length)
