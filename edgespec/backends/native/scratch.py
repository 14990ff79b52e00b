"""Every buffer that a pass writes to, allocated once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.attention.spans import (
    ROW_BLOCK,
    ROWS_PER_ITEM,
    SCORES_ROWS,
    SPLIT_NODES,
    WIDTH,
)
from edgespec.backends.native.kernels.matmul import tile
from edgespec.memory.kv.arena import SCALED
from edgespec.memory.plan.kv_sizes import num_spans
from edgespec.memory.plan.native_sizes import (
    attended_width,
    gated_dim,
    has_branches,
    normed_width,
    up_dim,
)
from edgespec.memory.plan.state_layout import round_up
from edgespec.models.layers import Attention
from edgespec.models.spec import ModelSpec
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Rows:
    """Activations that feed a matmul: as f32, and as int8 with the planes of `matmul/tile.py`."""

    floats: NDArray[np.float32]
    """[rows, width]."""
    quants: NDArray[np.int8]
    """[rows, width + 64]; nothing when width is no whole number of blocks, since nothing quantised
    reads it then. The 64 keep rows out of each other's cache sets.
    """
    planes: NDArray[np.int32]
    """[planes, rows, blocks]."""

    @classmethod
    def allocate(cls, num_rows: int, width: int) -> Rows:
        blocks = width // tile.BLOCK if width % tile.BLOCK == 0 else 0
        return cls(
            floats=np.zeros((num_rows, round_up(width, 16)), np.float32),
            quants=np.zeros((num_rows, width + 64 if blocks else 0), np.int8),
            planes=np.zeros((tile.NUM_PLANES, num_rows, blocks), np.int32),
        )

    def describe(self) -> list[int]:
        """Its eight entries of the table."""
        floats, quants, planes = self.floats, self.quants, self.planes
        return [
            *(floats.ctypes.data, floats.strides[0], quants.ctypes.data, quants.strides[0]),
            *(planes.ctypes.data, planes.strides[1], planes.strides[0], int(quants.shape[1] > 0)),
        ]

    @property
    def size_bytes(self) -> int:
        return self.floats.nbytes + self.quants.nbytes + self.planes.nbytes


_ATTENTION = frozenset({"scores", "mixed", "facts"})
_STRIDED = {
    "stream": table.STREAM,
    "branch": table.BRANCH,
    "query": table.QUERY,
    "key": table.KEY,
    "value": table.VALUE,
    "up": table.UP,
    "gates": table.GATES,
    "logits": table.LOGITS,
    "maxima": table.MAXIMA,
    "scores": table.SCORES,
    "mixed": table.MIXED,
    "facts": table.FACTS,
}
"""Where the address of a buffer is in the table; its stride is the entry after it."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """All buffers of a session; f32, rows padded to the largest tile, as wide as any layer asks."""

    stream: NDArray[np.float32]
    """[rows, dim]: the residual stream."""
    branch: NDArray[np.float32]
    """[rows, dim]: what a part of a layer gives, where it does not join the stream as it is."""
    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]
    up: NDArray[np.float32]
    """[rows, width of a dense part], and at least dim: what an adapter makes of the stream; and as
    wide as what latent attention rotates of queries.
    """
    gates: NDArray[np.float32]
    """[rows, heads * head_dim] of attention that has gates."""
    rotated: NDArray[np.uint8]
    """[kv_heads, rows * group / 12, bytes]: queries, rotated and scaled."""
    scores: NDArray[np.float32]
    """[threads, 14, width]."""
    mixed: NDArray[np.float32]
    """[regions of rows, spans * head_pad]: a span of a row comes to (int32 if scaled)."""
    facts: NDArray[np.float32]
    """[regions of rows, 3, spans to 16]: maximum, sum and step of these."""
    logits: NDArray[np.float32]
    maxima: NDArray[np.float32]
    """[rows, tiles]: of each tile of logits."""
    normed: Rows
    attended: Rows
    gated: Rows

    @classmethod
    def allocate(
        cls,
        spec: ModelSpec,
        context_length: int,
        max_nodes: int,
        prefill_chunk: int,
        threads: int,
        kv_type: str,
        sequences: int = 1,
    ) -> Scratch:
        """Buffers for passes of up to max(max_nodes, prefill_chunk) nodes of so many sequences."""
        num_rows = tile.padded(max(max_nodes, prefill_chunk))
        shapes = spec.attentions
        q_dim = max((each.heads * each.head_dim for each in shapes), default=0)
        gate_dim = max((each.heads * each.head_dim for each in shapes if each.gate), default=0)
        spans = num_spans(spec, context_length)
        regions = max((_regions(each, max_nodes, threads, sequences) for each in shapes), default=0)
        sizes = [_query_bytes(each, num_rows, kv_type, sequences) for each in shapes]
        queries, head_pad = max(sizes, default=0), round_up(spec.head_dim, 16)

        def floats(*shape: int) -> NDArray[np.float32]:
            return np.zeros(shape, np.float32)

        return cls(
            stream=floats(num_rows, spec.dim),
            branch=floats(num_rows, spec.dim if has_branches(spec) else 0),
            query=floats(num_rows, round_up(q_dim, 16)),
            key=floats(num_rows, round_up(spec.kv_dim, 16)),
            value=floats(num_rows, round_up(spec.kv_dim, 16)),
            up=floats(num_rows, round_up(up_dim(spec), 16)),
            gates=floats(num_rows, round_up(gate_dim, 16)),
            rotated=np.zeros(queries, np.uint8),
            scores=floats(threads, SCORES_ROWS, WIDTH),
            mixed=floats(regions, spans * head_pad),
            facts=floats(regions, 3, round_up(spans, 16)),
            logits=floats(tile.padded(max_nodes), round_up(spec.vocab_size, 16)),
            maxima=floats(tile.padded(max_nodes), round_up(spec.vocab_size, 16) // 16),
            normed=Rows.allocate(num_rows, normed_width(spec)),
            attended=Rows.allocate(num_rows, attended_width(spec)),
            gated=Rows.allocate(num_rows, gated_dim(spec)),
        )

    def fill(self, c: NDArray[np.int64]) -> None:
        """Enter addresses and strides of all buffers."""
        for name, place in _STRIDED.items():
            buffer = getattr(self, name)
            c[place : place + 2] = (buffer.ctypes.data, buffer.strides[0])
        c[table.ROTATED] = self.rotated.ctypes.data
        for place, rows in (
            (table.NORMED, self.normed),
            (table.ATTENDED, self.attended),
            (table.GATED, self.gated),
        ):
            c[place : place + 8] = rows.describe()

    @property
    def activation_bytes(self) -> int:
        """Bytes of everything but logits with their maxima and what attention keeps."""
        names = {field.name for field in fields(self)} - {"logits", "maxima", *_ATTENTION}
        return self._size_bytes(names)

    @property
    def attention_bytes(self) -> int:
        """Bytes of what attention keeps between spans."""
        return self._size_bytes(_ATTENTION)

    def _size_bytes(self, names: Iterable[str]) -> int:
        parts = (getattr(self, name) for name in names)
        return sum(part.size_bytes if isinstance(part, Rows) else part.nbytes for part in parts)


def query_rows(num_rows: int, sequences: int) -> int:
    """Rows of a key head when each sequence's begin a block, at most."""
    return round_up(num_rows + (sequences - 1) * (ROW_BLOCK - 1), ROW_BLOCK)


def split_rows(attention: Attention, max_nodes: int, sequences: int) -> int:
    """Rows of a key head when threads share its spans, in whole blocks."""
    group, nodes = attention.heads // attention.kv_heads, min(SPLIT_NODES, max_nodes)
    return query_rows(nodes * group, min(sequences, nodes))


def block_bytes(head_dim: int, kv_type: str) -> int:
    """Bytes of 12 rows' queries: f32, or two int8 digits, a step and a start for each block."""
    if kv_type == "f16":
        return ROW_BLOCK * 4 * round_up(head_dim, 16)
    return ROW_BLOCK * (4 + -(-head_dim // SCALED) * (2 * SCALED + 4))


def head_bytes(attention: Attention, num_rows: int, kv_type: str, sequences: int) -> int:
    """Bytes of the queries of a key head."""
    group = attention.heads // attention.kv_heads
    blocks = query_rows(num_rows * group, sequences) // ROW_BLOCK
    return blocks * block_bytes(attention.head_dim, kv_type)


def _query_bytes(attention: Attention, num_rows: int, kv_type: str, sequences: int) -> int:
    return attention.kv_heads * head_bytes(attention, num_rows, kv_type, sequences)


def _regions(attention: Attention, max_nodes: int, threads: int, sequences: int) -> int:
    rows = attention.kv_heads * split_rows(attention, max_nodes, sequences)
    return max(rows, threads * ROWS_PER_ITEM)
