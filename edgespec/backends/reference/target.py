"""The reference backend: a model's description written out in plain NumPy, slow and obvious.

Every other backend is tested against it. Weights are float32, whatever the file holds; nothing is
quantised on the way, so it also tells what int8 activations cost. Each node is computed alone, one
matrix times one vector at a time and without BLAS: its product of several rows differs from the
rows' own products in most of their last bits, and its threads stall on a busy machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from edgespec.backends.base import Part, Target, lender_of
from edgespec.backends.passes import Capabilities, Pass, Progress, Rows, TokenTree
from edgespec.backends.reference.arithmetic import Vector, multiply, soft_cap
from edgespec.backends.reference.layer import Row, run_layer
from edgespec.backends.reference.weights import Weights
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.layers import Norm
from edgespec.models.spec import PerLayerEmbedding, Streams
from edgespec.system.records import dataclass

_KV_TYPES: dict[str, type[np.floating[Any]]] = {"f16": np.float16, "f32": np.float32}


@dataclass(slots=True)
class TextRows:
    """One text's rows, one for each position."""

    committed: list[Row] = field(default_factory=list)
    nodes: list[Row] = field(default_factory=list)
    """Of the last forward pass."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The committed rows; a row is never written to again, so they are shared."""

    rows: tuple[Row, ...]


class ReferenceTarget(Target):
    """One open model; each position has a row of what its layers keep.

    That is keys and values, or a state of its own for layers that have one, so that forgetting
    positions is forgetting rows. Raises BackendError when the plan asks for a KV type other than
    f16 or f32; states are f32.
    """

    capabilities = Capabilities(
        name="reference", bit_exact_rows=True, trees=True, sequences=True, draft_heads=True
    )

    def __init__(
        self,
        file: ModelFile,
        plan: Plan,
        progress: Progress | None = None,
        lender: ReferenceTarget | None = None,
    ) -> None:
        """`lender` is the model that a draft head reads."""
        super().__init__(file.spec, plan.context_length, plan.max_nodes, plan.sequences)
        if plan.kv_type not in _KV_TYPES:
            raise BackendError(
                f"the reference backend was asked for {plan.kv_type} KV; "
                f"it holds {' or '.join(_KV_TYPES)}"
            )
        self._kv_type = _KV_TYPES[plan.kv_type]
        self._chunk = max(plan.prefill_chunk, plan.max_nodes)
        self._weights: Weights | None = Weights(file, plan.context_length, progress)
        self._lender = lender
        self._taps: tuple[int, ...] = ()
        """Layers before which streams are left for a draft head."""
        self._left: list[Vector] = []
        """What the nodes of the last pass left."""

    @property
    def prefill_chunk(self) -> int:
        return self._chunk

    def _open_sequence(self) -> TextRows:
        return TextRows()

    def _fork(self, sequence: KvSequence, length: int) -> TextRows:
        return TextRows(sequence.state.committed[:length])

    def _forward(self, parts: Sequence[Part], rows: Rows) -> Pass:
        self._left = []
        states = [state for sequence, tree in parts for state in self._tree(sequence, tree)]
        wanted = {"all": states, "last": states[-1:], "none": []}[rows]
        logits = np.empty((len(wanted), self.spec.vocab_size), np.float32)
        for index, state in enumerate(wanted):
            logits[index] = self._logits(state)
        return Pass(logits, hidden=np.stack(self._left) if self._left else None)

    def open_head(
        self, file: ModelFile, plan: Plan, progress: Progress | None = None
    ) -> ReferenceTarget:
        part = file.spec.head_input
        assert part is not None
        self._taps = part.taps
        return ReferenceTarget(file, plan, progress, lender=self)

    def _tree(self, sequence: KvSequence, tree: TokenTree) -> list[Vector]:
        """The residual streams of each node, in the end."""
        text: TextRows = sequence.state
        text.nodes = []
        borrowed: list[Row] | None = None
        num_layers = self.spec.num_layers
        if self.spec.borrows_keys:
            assert self._lender is not None
            borrowed = lender_of(sequence, self._lender).state.committed
            num_layers = max(num_layers, self._lender.spec.num_layers)
        seen: list[list[Row]] = []
        states: list[Vector] = []
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            before = text.committed if parent < 0 else seen[parent]
            row: Row = [None] * num_layers
            seen.append([*(before if borrowed is None else borrowed), row])
            if self.spec.head_input is not None:
                assert tree.states is not None
                states.append(self._head_node(int(token), tree.states[node], seen[-1]))
            else:
                states.append(self._node(int(token), seen[-1]))
            text.nodes.append(row)
        return states

    def _node(self, token: int, seen: Sequence[Row]) -> Vector:
        """Run all layers for one token; `seen` ends with its own row, filled on the way."""
        weights, spec = self._held, self.spec
        embedded = self._embedded(token)
        extras = _extras(spec.per_layer_embedding, weights, embedded, token, spec.num_layers)
        streams = _first_streams(spec.streams, weights, embedded)
        taken = {0: streams[0]}
        for number, layer in enumerate(spec.layers):
            extra = None if extras is None else extras[number]
            streams = run_layer(number, layer, weights, streams, seen, extra, self._kv_type)
            taken[number + 1] = streams[0]
        stream = _one_stream(spec.streams, weights, streams)
        if self._taps:
            taken[spec.num_layers] = self._last_normed(stream)
            self._left.append(np.concatenate([taken[tap] for tap in self._taps]))
        return stream

    def _head_node(self, token: int, state: Vector, seen: Sequence[Row]) -> Vector:
        """The same of a draft head, for a token and a state: its own, or what the model left."""
        weights, spec, part = self._held, self.spec, self.spec.head_input
        assert part is not None
        if part.fusion is not None and len(state) == part.fusion.columns:
            state = weights.project(part.fusion, weights.norm(part.fusion_norm, state))
        normed = weights.norm(part.state_norm, state)
        both = np.concatenate([weights.norm(part.token_norm, self._embedded(token)), normed])
        if part.projection is not None:
            stream, mixed = weights.project(part.projection, both), None
        else:
            stream, mixed = normed if part.normed_stream else state, both
        for number, layer in enumerate(spec.layers):
            own = mixed if number == 0 else None
            (stream,) = run_layer(
                number, layer, weights, stream[None], seen, None, self._kv_type, own
            )
        own_state = self._last_normed(stream) if part.normed_states else stream
        if part.state_projection is not None:
            own_state = weights.project(part.state_projection, own_state)
        self._left.append(own_state)
        return stream

    def _embedded(self, token: int) -> Vector:
        """A token's embedding, the model's where a head has none."""
        owner = self
        if not self.spec.embedding and self._lender is not None:
            owner = self._lender
        row = owner._held.table(owner.spec.embedding)[token]
        scaled: Vector = row * np.float32(self.spec.embedding_scale)
        return scaled

    def _last_normed(self, stream: Vector) -> Vector:
        return self._held.norm(Norm(self.spec.last_norm, self.spec.dim), stream)

    def _logits(self, stream: Vector) -> Vector:
        spec = self.spec
        matrix = (
            self._lender._held.table(self._lender.spec.head)
            if not spec.head and self._lender is not None
            else self._held.table(spec.head)
        )
        logits = multiply(matrix, self._last_normed(stream)) * np.float32(spec.logit_scale)
        return soft_cap(logits, spec.logit_softcap)

    @property
    def _held(self) -> Weights:
        assert self._weights is not None  # checked before every pass
        return self._weights

    def _commit(self, sequence: KvSequence, path: Sequence[int]) -> None:
        text: TextRows = sequence.state
        text.committed += [text.nodes[node] for node in path]
        text.nodes = []

    def _truncate(self, sequence: KvSequence, length: int) -> None:
        del sequence.state.committed[length:]

    def _snapshot(self, sequence: KvSequence) -> Snapshot:
        return Snapshot(tuple(sequence.state.committed))

    def _restore(self, sequence: KvSequence, snapshot: Any) -> int:
        if not isinstance(snapshot, Snapshot):
            raise BackendError(f"a reference target cannot restore a {type(snapshot).__name__}")
        sequence.state.committed = list(snapshot.rows)
        return len(snapshot.rows)

    def _close(self) -> None:
        self._weights, self.own.state = None, TextRows()


def _extras(
    part: PerLayerEmbedding | None, weights: Weights, embedded: Vector, token: int, layers: int
) -> Vector | None:
    """The token's embedding for each layer, [layers, width]."""
    if part is None:
        return None
    own = weights.matrix(part.table)[token].reshape(layers, part.width)
    projected = weights.project(part.projection, embedded).reshape(layers, part.width)
    projected = weights.norm(part.norm, projected / np.float32(np.sqrt(len(embedded))))
    both: Vector = (own * np.float32(np.sqrt(part.width)) + projected) / np.float32(np.sqrt(2))
    return both


def _first_streams(part: Streams | None, weights: Weights, embedded: Vector) -> Vector:
    """[streams, dim] before the first layer."""
    if part is None:
        return embedded[None]
    others = [weights.project(part.projection, embedded, j) for j in range(part.count - 1)]
    return np.stack([embedded, *(_as_long_as(embedded, other) for other in others)])


def _one_stream(part: Streams | None, weights: Weights, streams: Vector) -> Vector:
    """[dim] after the last layer."""
    if part is None:
        alone: Vector = streams[0]
        return alone
    others = [weights.project(part.unembedding, streams[j + 1], j) for j in range(part.count - 1)]
    mean: Vector = np.mean([streams[0], *(_as_long_as(streams[0], o) for o in others)], axis=0)
    return mean


def _as_long_as(model: Vector, vector: Vector) -> Vector:
    """A vector's direction, at another's length."""
    return vector * np.float32(np.linalg.norm(model) / np.linalg.norm(vector))
