"""The native CPU backend: a GGUF model on our own kernels."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Part
from edgespec.backends.native.adapters import Adapters
from edgespec.backends.native.early import EarlyStates
from edgespec.backends.native.experts import Experts
from edgespec.backends.native.head_host import HeadHost
from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kv_store import KvTables, Snapshot
from edgespec.backends.native.limits import refusal
from edgespec.backends.native.node_tables import NodeRows, NodeTables
from edgespec.backends.native.pace import Pace
from edgespec.backends.native.per_layer import PerLayerInputs
from edgespec.backends.native.program import Program
from edgespec.backends.native.recurrent.passes import recurrent_passes
from edgespec.backends.native.scratch import Scratch
from edgespec.backends.native.shape_tables import ShapeTables
from edgespec.backends.native.shapes import shapes_of
from edgespec.backends.native.streaming.streamed_weights import StreamedWeights
from edgespec.backends.native.streams import ResidualStreams
from edgespec.backends.native.tile_functions import TileFunctions
from edgespec.backends.native.weights import Weights
from edgespec.backends.native.whole_passes import WholePasses
from edgespec.backends.passes import (
    TILE,
    Capabilities,
    CompiledPass,
    Logits,
    Pass,
    Progress,
    Rows,
    TokenTree,
)
from edgespec.backends.sequence import KvSequence
from edgespec.errors import UnsupportedModelError
from edgespec.memory.plan.footprint import ADAPTER_ITEM
from edgespec.memory.plan.head_sizes import HEAD_ITEM
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.state_layout import CHECKPOINT_EVERY
from edgespec.memory.plan.streaming import STREAM_ITEM
from edgespec.models.adapter import Adapter
from edgespec.models.file import ModelFile
from edgespec.system.cores import cores
from edgespec.system.disk_cache import code_key
from edgespec.system.durations import seconds_since
from edgespec.system.precompiled import chosen

_NOTHING = (0, 0)  # as a range of stages


class NativeTarget(HeadHost):
    """One open model; `kernels/matmul/tile.py` tells how its weights lie in memory."""

    capabilities = Capabilities(
        name="native",
        bit_exact_rows=True,
        trees=True,
        sequences=True,
        early_exit=True,
        draft_heads=True,
    )

    def __init__(
        self,
        file: ModelFile,
        plan: Plan,
        progress: Progress | None = None,
        adapter: Adapter | None = None,
        lender: NativeTarget | None = None,
    ) -> None:
        """`lender` is the model that a draft head reads and shares threads and weights with."""
        spec = file.spec
        why_not = refusal(spec, file.tensors.values())
        if why_not:
            raise UnsupportedModelError(why_not)
        self._shapes = shapes_of(spec, file, plan.context_length)
        self._recurrent = recurrent_passes(spec, plan)
        self.store = self._kv = self._open_store(spec, plan, lender)
        if spec.per_layer_embedding is not None or self._recurrent is not None or plan.streaming:
            # A pass that goes on would lack its nodes' embeddings, what they do to states, or
            # matrices that are read in the order of whole passes.
            self.capabilities = replace(self.capabilities, early_exit=False)
        super().__init__(spec, plan.context_length, plan.max_nodes, plan.sequences)
        self._isa = isa.chosen()
        self._chunk = max(plan.prefill_chunk, plan.max_nodes)
        self._weights: Weights = Weights(
            file, progress, None if lender is None else lender._weights, plan.streaming
        )
        self._streamed = StreamedWeights.of(file, self._weights, plan.streaming)
        self._scratch = Scratch.allocate(
            spec,
            plan.context_length,
            plan.max_nodes,
            self._chunk,
            plan.threads,
            plan.kv_type,
            plan.sequences,
        )
        self._nodes = NodeTables(self._chunk, plan.max_nodes, plan.sequences, len(self._shapes))
        self._early = EarlyStates(plan.max_nodes, spec.dim)
        self._adapters = Adapters(spec.dim, adapter)
        self._tiles = TileFunctions(self._isa, self._weights, self._adapters)
        self._tiles_entered = 0  # the number of nodes whose functions the table holds
        self._head_entered: tuple[int, int | None] | None = None
        """For how many logits, and through which layer's adapter, the table's head is."""
        self._views: dict[tuple[int, int], tuple[Logits, Logits]] = {}
        self._shape_tables = ShapeTables(spec, self._shapes, self._kv.arenas, self._scratch, plan)
        self._tables = self._shape_tables.words
        self._table = self._shape_tables.base
        self._nodes.fill(self._tables)
        extra, rows = spec.per_layer_embedding, len(self._scratch.stream)
        self._per_layer = None if extra is None else PerLayerInputs(spec, extra, rows)
        store = self._streamed.experts if self._streamed else None
        self._experts = Experts.of(spec, self._weights, self._table, rows, plan.threads, store)
        streams = spec.streams
        self._streams = None if streams is None else ResidualStreams(streams, spec.dim, rows)
        self._begin_head(rows)
        self._compile()
        self._team = self._team_beside(lender, plan)
        if self._recurrent is not None:
            settle = weakref.WeakMethod(self._settle)  # a cycle would keep its threads alive
            self._recurrent.walk = lambda: settle()()  # type: ignore[misc]
        self._paces: dict[int, Pace] = {}
        self.limit_threads(None)
        self._num_logits = spec.vocab_size  # of the last pass

    def _compile(self) -> None:
        parts = self._per_layer, self._recurrent, self._experts, self._streams
        read = self._inputs, self._left, self._streamed
        self._program = Program(self.spec, self._weights, self._shape_tables, *parts, *read)
        self._program.fill(self._table)
        self._head = (0, 0)
        """Its first stage and the one after its last."""
        self._head_entered = None
        embedding = self._weights.embedding, self.spec.embedding_scale
        made = self._nodes, self._scratch, self._program, *embedding
        tiles, most = self._tiles.for_nodes, self.max_nodes
        self._whole_passes = WholePasses(self._table, *made, tiles, most)
        alone = self._kv.only is not None and all(one is None for one in (*parts, *read))
        self._is_plain = alone and not embedding[0].is_on_disk and chosen().source != "python"
        """Whether passes leave nothing to Python: one over one sequence is one call."""

    def _open_guest(self, file: ModelFile, plan: Plan, progress: Progress | None) -> NativeTarget:
        head = NativeTarget(file, plan, progress, lender=self)
        self._guest = weakref.ref(head)
        return head

    @property
    def prefill_chunk(self) -> int:
        return self._chunk

    def limit_threads(self, most: int | None) -> None:
        size = self._team.size if most is None else max(1, min(most, self._team.size))
        if size not in self._paces:
            self._paces[size] = Pace(size, self._heat, unequal=cores().unequal)
        self._pace = self._paces[size]

    @property
    def kv_kind(self) -> str:
        return repr((code_key(), self._isa, self._kv.kind))

    def allocated_bytes(self) -> dict[str, int]:
        adapter = self._adapters.size_bytes
        head, beside = self.head_bytes, (self._per_layer, self._streams)
        extra = sum(part.size_bytes for part in beside if part is not None)
        return {
            "weights": self._weights.size_bytes,
            **({STREAM_ITEM: self._streamed.size_bytes} if self._streamed else {}),
            **({ADAPTER_ITEM: adapter} if adapter else {}),
            **({HEAD_ITEM: head} if head else {}),
            "KV cache": self._kv.arenas_bytes,
            **self._kv.states_bytes,
            "logits": self._scratch.logits.nbytes + self._scratch.maxima.nbytes,
            "activations": self._scratch.activation_bytes + self._shape_tables.angle_bytes + extra,
            "node scratch": (
                self._scratch.attention_bytes
                + self._nodes.size_bytes
                + self._early.rows.nbytes
                + self._whole_passes.size_bytes
                + (0 if self._recurrent is None else self._recurrent.scratch_bytes)
                + (self._experts.scratch.size_bytes if self._experts else 0)
            ),
        }

    @property
    def bytes_read(self) -> int:
        return 0 if self._streamed is None else self._streamed.bytes_read

    def forget_uses(self) -> None:
        if self._streamed is not None and self._streamed.experts is not None:
            self._streamed.experts.used[:] = 0

    @property
    def experts_read(self) -> NDArray[np.int64]:
        """How many experts the last pass read in each layer, int64 [layers]; 0 where none mix."""
        none = np.zeros(self.spec.num_layers, np.int64)
        return none if self._experts is None else self._experts.read

    def _open_sequence(self) -> KvTables:
        return self._kv.open()

    def _fork(self, sequence: KvSequence, length: int) -> KvTables:
        forked: KvTables = sequence.state.fork(length)
        return forked

    def _forward(self, parts: Sequence[Part], rows: Rows) -> Pass:
        start = time.perf_counter()
        sequence, tree = parts[0]
        if self._is_plain and len(parts) == 1 and rows == "all" and sequence.early is None:
            self._point(sequence, len(tree.tokens))
            num_nodes = self._whole_passes.compute(tree, sequence.length)
            self._pace.observe(num_nodes, seconds_since(start))
            return self._found(num_nodes, self.spec.vocab_size)
        if any(sequence.early is not None for sequence, _ in parts):
            return self._go_on(parts, rows)
        texts = [self._whole(sequence, tree) for sequence, tree in parts]
        num_nodes = self._prepare(texts, parts)
        if self._recurrent is None:
            found = self._run(self.spec.num_layers, 0, num_nodes, rows)
        else:
            trees = [(sequence.state.states, tree.parents) for sequence, tree in parts]
            self._recurrent.begin(trees)
            found = self._run(self.spec.num_layers, 0, num_nodes, rows)
            self._recurrent.end(trees)
        self._pace.observe(num_nodes, seconds_since(start))
        return found

    def _prepare(self, texts: Sequence[NodeRows], parts: Sequence[Part]) -> int:
        """Embed the wanted nodes of these trees and describe them; returns how many they are."""
        row = 0
        for text, (_, tree) in zip(texts, parts, strict=True):
            count, tokens = len(text.wanted), tree.tokens
            if count < len(tokens):
                tokens = tokens[text.wanted]
            self._embed(tokens, self._embeddings[row:])
            if self._per_layer is not None:
                self._per_layer.look_up(self._weights, tokens, row)
            row += count
        self._nodes.describe(self._tables, texts)
        self._take_states(parts, row)
        return row

    def _embed(self, tokens: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Write these tokens' embeddings [n] to the first rows of f32 [n or more, dim]."""
        self._weights.embedding.unpack_rows(tokens, out)
        if self.spec.embedding_scale != 1.0:
            out[: len(tokens)] *= np.float32(self.spec.embedding_scale)

    def _prefill(
        self,
        sequence: KvSequence,
        tokens: NDArray[np.int32],
        states: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32] | None:
        if self._recurrent is None:
            return super()._prefill(sequence, tokens, states)
        tree = TokenTree.chain(tokens)
        num_rows = self._prepare([self._whole(sequence, tree)], ((sequence, tree),))
        self._recurrent.begin_chain(sequence.state.states, tree.parents)
        found = self._run(self.spec.num_layers, 0, num_rows, "none")
        self._recurrent.end([(sequence.state.states, tree.parents)])
        self._kv.drop(sequence, sequence.length + num_rows)
        return found.hidden

    def prefill_step(self, length: int) -> int:
        if self._recurrent is None:
            return self._chunk
        return min(self._chunk, CHECKPOINT_EVERY - length % CHECKPOINT_EVERY)

    def _settle(self) -> None:
        """A pass without rows: states take what is pending."""
        self._team.run((*self._program.settling, *_NOTHING), 0, 0, self._pace.threads)

    def _run(
        self,
        num_layers: int,
        first_layer: int,
        num_rows: int,
        rows: Rows,
        num_logits: int | None = None,
        adapted: int | None = None,
    ) -> Pass:
        """Run some layers, and the head for these rows and the vocabulary's first tokens, through
        the adapter of a layer if one is named.
        """
        count = num_rows if rows == "all" else int(rows == "last")
        num_logits = num_logits or self.spec.vocab_size
        self._choose_head(num_logits, adapted)
        at_once, threads = count == num_rows and num_layers > 0, self._pace.threads
        if num_layers > 0:
            starts = self._program.starts
            stages = starts[first_layer], starts[first_layer + num_layers]
            self._choose_tiles(num_rows)
            head = self._head if at_once else _NOTHING
            with nullcontext() if self._streamed is None else self._streamed:
                self._team.run((*stages, *head), num_rows, 0, threads)
        if count and not at_once:
            self._choose_tiles(count)
            self._team.run((*_NOTHING, *self._head), count, num_rows - count, threads)
        found = self._found(count, num_logits)
        if self._left is not None:
            found.hidden = self._left.rows[:num_rows]
        return found

    def compiled_pass(self, sequence: KvSequence, most_tokens: int) -> CompiledPass | None:
        if not self._is_plain or sequence.follower is not None:
            return None
        self.check(sequence, np.zeros(0, np.int32))
        self._point(sequence, most_tokens)
        return self._whole_passes.entries

    def _point(self, sequence: KvSequence, num_tokens: int) -> None:
        self._choose_head(self.spec.vocab_size, None)
        self._tiles_entered = 0
        self._team.gather()
        threads = min(self._pace.threads, self._team.size)
        self._whole_passes.point(sequence, num_tokens, self._head, threads)

    def compiled_passes(self, sequence: KvSequence, num_tokens: int, seconds: float) -> None:
        super().compiled_passes(sequence, num_tokens, seconds)
        if seconds:
            self._pace.observe(1, seconds)

    def _choose_head(self, num_logits: int, adapted: int | None) -> None:
        """Let the head's stages say so many logits, through a layer's adapter if one is named."""
        self._num_logits = num_logits
        if self._head_entered != (num_logits, adapted):
            matrix = self._weights.head_place(num_logits)
            self._head = self._program.choose_head(matrix, self._adapters.place(adapted))
            self._head_entered = num_logits, adapted

    def _found(self, count: int, num_logits: int) -> Pass:
        """What lies in the scratch arrays after a pass: always in the same place, so views of it
        are made once.
        """
        views = self._views.get((count, num_logits))
        if views is None:
            scratch, num_tiles = self._scratch, -(-num_logits // TILE)
            views = scratch.logits[:count, :num_logits], scratch.maxima[:count, :num_tiles]
            self._views[count, num_logits] = views
        return Pass(*views, experts=0 if self._experts is None else int(self._experts.read.sum()))

    def _choose_tiles(self, num_nodes: int) -> None:
        """Enter the tile functions for this many nodes in the table."""
        if num_nodes != self._tiles_entered:
            for c in self._tables:
                c[table.TILES :] = self._tiles.for_nodes(num_nodes)
            self._tiles_entered = num_nodes

    def _commit(self, sequence: KvSequence, path: Sequence[int]) -> None:
        slots = path if sequence.early is None else sequence.early.slots[list(path)].tolist()
        self._kv.commit(self._tables, sequence, path, slots)

    def _rewindable(self, sequence: KvSequence, length: int) -> int:
        return self._kv.rewindable(sequence, length)

    def _truncate(self, sequence: KvSequence, length: int) -> None:
        sequence.state.release(length)

    def _close(self) -> None:
        self._team.close()
        if self._streamed is not None:
            self._streamed.close()
        self.own.state.release(0)
        self._kv.give_back()
        del (
            self._weights,
            self._streamed,
            self._inputs,
            self._embeddings,
            self._left,
            self._program,
            self._experts,
            self._scratch,
            self._views,
            self._tiles,
            self._nodes,
            self._early,
            self._adapters,
            self._whole_passes,
        )

    def _snapshot(self, sequence: KvSequence) -> Snapshot:
        return self._kv.snapshot(sequence)

    def _restore(self, sequence: KvSequence, snapshot: Any) -> int:
        return self._kv.restore(sequence, snapshot)
