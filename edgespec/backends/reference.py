"""The reference backend: the transformer written out in plain NumPy, slow and obvious.

Every other backend is tested against it. Weights are float32, whatever the file holds; nothing is
quantised on the way, so it also tells what int8 activations cost. Each node is computed alone, one
matrix times one vector at a time and without BLAS: its product of several rows differs from the
rows' own products in most of their last bits, and its threads stall on a busy machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Part, Target
from edgespec.backends.passes import Capabilities, Pass, Progress, Rows, TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.layers import Rope

Vector = NDArray[np.float32]
_KV_TYPES: dict[str, type[np.floating[Any]]] = {"f16": np.float16, "f32": np.float32}


@dataclass(slots=True)
class KvRows:
    """One text's keys and values, a row for each position."""

    committed: list[NDArray[Any]] = field(default_factory=list)
    nodes: list[NDArray[Any]] = field(default_factory=list)
    """Of the last forward pass."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The committed rows; a row is never written to again, so they are shared."""

    rows: tuple[NDArray[Any], ...]


class ReferenceTarget(Target):
    """One open model; each position has a row of keys and values, [layers, 2, kv_heads, head_dim].

    Raises BackendError when the plan asks for a KV type other than f16 or f32.
    """

    capabilities = Capabilities(name="reference", bit_exact_rows=True, trees=True, sequences=True)

    def __init__(self, file: ModelFile, plan: Plan, progress: Progress | None = None) -> None:
        super().__init__(file.spec, plan.context_length, plan.max_nodes, plan.sequences)
        if plan.kv_type not in _KV_TYPES:
            raise BackendError(
                f"the reference backend was asked for {plan.kv_type} KV; "
                f"it holds {' or '.join(_KV_TYPES)}"
            )
        self._kv_type = _KV_TYPES[plan.kv_type]
        self._chunk = max(plan.prefill_chunk, plan.max_nodes)
        self._weights: dict[str, NDArray[np.float32]] = {}
        for done, name in enumerate(file.tensors, 1):
            self._weights[name] = file.matrix_f32(name)
            if progress is not None:
                progress(done, len(file.tensors))
        self._plain = self.spec.attentions[0]
        assert self._plain.rope is not None
        factors = self._weights.get(self._plain.rope.factors)
        self._frequencies = rope_frequencies(self._plain.rope, factors)

    @property
    def prefill_chunk(self) -> int:
        return self._chunk

    def _open_sequence(self) -> KvRows:
        return KvRows()

    def _fork(self, sequence: KvSequence, length: int) -> KvRows:
        return KvRows(sequence.state.committed[:length])

    def _forward(self, parts: Sequence[Part], rows: Rows) -> Pass:
        states = [state for sequence, tree in parts for state in self._tree(sequence.state, tree)]
        wanted = {"all": states, "last": states[-1:], "none": []}[rows]
        logits = np.empty((len(wanted), self.spec.vocab_size), np.float32)
        for index, state in enumerate(wanted):
            logits[index] = self._logits(state)
        return Pass(logits)

    def _tree(self, text: KvRows, tree: TokenTree) -> list[Vector]:
        """The residual stream of each node, in the end."""
        text.nodes = []
        seen: list[list[NDArray[Any]]] = []
        states: list[Vector] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            before = text.committed if parent < 0 else seen[parent]
            row = self._new_row()
            states.append(self._node(int(token), len(before), [*before, row]))
            seen.append([*before, row])
            text.nodes.append(row)
        return states

    def _node(self, token: int, position: int, seen: list[NDArray[Any]]) -> Vector:
        """Run all layers for one token; `seen` ends with its own row, filled on the way."""
        stream: Vector = self._weights["token_embd.weight"][token].copy()
        for layer in range(self.spec.num_layers):
            stream += self._attention(layer, self._norm(stream, layer, "attn_norm"), position, seen)
            stream += self._feed_forward(layer, self._norm(stream, layer, "ffn_norm"))
        return stream

    def _attention(
        self, layer: int, normed: Vector, position: int, seen: list[NDArray[Any]]
    ) -> Vector:
        spec = self.spec
        query, key, value = (
            self._project(layer, name, normed).reshape(-1, spec.head_dim)
            for name in ("attn_q", "attn_k", "attn_v")
        )
        if self._plain.query_norm is not None:
            query = self._norm(query, layer, "attn_q_norm")
            key = self._norm(key, layer, "attn_k_norm")
        assert self._plain.rope is not None
        layout = self._plain.rope.layout
        query, key = (rotate(heads, position * self._frequencies, layout) for heads in (query, key))
        seen[-1][layer] = key, value
        cached = np.stack([row[layer] for row in seen]).astype(np.float32)  # [seen, 2, heads, dim]
        group = spec.num_heads // spec.num_kv_heads
        mixed = np.empty_like(query)
        for head in range(spec.num_heads):
            keys = np.ascontiguousarray(cached[:, 0, head // group])
            values = np.ascontiguousarray(cached[:, 1, head // group])
            scores = multiply(keys, query[head]) / np.float32(np.sqrt(spec.head_dim))
            mixed[head] = np.einsum("i,ij->j", softmax(scores), values)
        return self._project(layer, "attn_output", mixed.ravel())

    def _feed_forward(self, layer: int, normed: Vector) -> Vector:
        gate = self._project(layer, "ffn_gate", normed)
        up = self._project(layer, "ffn_up", normed)
        return self._project(layer, "ffn_down", silu(gate) * up)

    def _logits(self, stream: Vector) -> Vector:
        last = rms_norm(stream, self._weights["output_norm.weight"], self.spec.norm_epsilon)
        return multiply(self._weights[self.spec.head], last)

    def _project(self, layer: int, name: str, vector: Vector) -> Vector:
        result = multiply(self._weights[f"blk.{layer}.{name}.weight"], vector)
        bias = self._weights.get(f"blk.{layer}.{name}.bias")
        return result if bias is None else result + bias

    def _norm(self, values: Vector, layer: int, name: str) -> Vector:
        gain = self._weights[f"blk.{layer}.{name}.weight"]
        return rms_norm(values, gain, self.spec.norm_epsilon)

    def _new_row(self) -> NDArray[Any]:
        spec = self.spec
        return np.zeros((spec.num_layers, 2, spec.num_kv_heads, spec.head_dim), self._kv_type)

    def _commit(self, sequence: KvSequence, path: Sequence[int]) -> None:
        text: KvRows = sequence.state
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
        self._weights, self.own.state = {}, KvRows()


def multiply(matrix: Vector, vector: Vector) -> Vector:
    """matrix [rows, columns] x vector [columns]."""
    product: Vector = np.einsum("ij,j->i", matrix, vector)
    return product


def rms_norm(values: Vector, gain: Vector, epsilon: float) -> Vector:
    """values [..., width] / root of their mean square * gain [width]; the mean in float64."""
    mean = np.mean(np.square(values, dtype=np.float64), axis=-1, keepdims=True)
    normed: Vector = (values / np.sqrt(mean + epsilon) * gain).astype(np.float32)
    return normed


def rope_frequencies(rope: Rope, factors: Vector | None) -> NDArray[np.float64]:
    """Radians per position of each rotated pair, f64 [dim / 2].

    Source: RoFormer, equation 15; linear position scaling; Llama 3.1's per-frequency divisors.
    """
    pairs = np.arange(rope.dim // 2)
    frequencies = rope.scale / rope.base ** (2 * pairs / rope.dim)
    if factors is not None:
        frequencies = frequencies / factors.ravel()
    return frequencies


def rotate(heads: Vector, angles: NDArray[np.float64], layout: str) -> Vector:
    """Turn pairs of leading dimensions of heads [heads, head_dim] by angles [rope_dim / 2] rad.

    Pairs are neighbours (2i, 2i + 1) when "interleaved", (i, i + rope_dim / 2) in "halves".
    """
    order = np.arange(2 * len(angles))
    first, second = order.reshape(-1, 2).T if layout == "interleaved" else order.reshape(2, -1)
    cosines, sines = np.cos(angles), np.sin(angles)
    turned = heads.copy()
    turned[:, first] = heads[:, first] * cosines - heads[:, second] * sines
    turned[:, second] = heads[:, first] * sines + heads[:, second] * cosines
    return turned


def softmax(scores: Vector) -> Vector:
    """Scores [n] as shares that sum to one."""
    powers = np.exp(scores - scores.max(), dtype=np.float64)
    shares: Vector = (powers / powers.sum()).astype(np.float32)
    return shares


def silu(values: Vector) -> Vector:
    """values / (1 + e**-values), for any values."""
    gated: Vector
    with np.errstate(over="ignore"):
        gated = (values / (1.0 + np.exp(-values.astype(np.float64)))).astype(np.float32)
    return gated
