"""What a pass runs on: every buffer the kernels write to, allocated once, and the table that tells
them where it all is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.attention.spans import (
    ROW_BLOCK,
    ROWS_PER_ITEM,
    SCORES_ROWS,
    SPAN,
    SPLIT_NODES,
    WIDTH,
)
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.matmul import tile
from edgespec.memory.kv.arena import BLOCK, SCALED, KvArena
from edgespec.models.layers import Rope
from edgespec.models.spec import ModelSpec


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def rope_frequencies(rope: Rope, factors: NDArray[np.float32] | None) -> NDArray[np.float64]:
    """Radians per position, f64 [rope_dim / 2]."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    frequencies = rope.base**-exponents * rope.scale
    return frequencies if factors is None else frequencies / factors.astype(np.float64)


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


@dataclass(frozen=True, slots=True)
class Scratch:
    """All buffers of a session; f32, rows padded to the largest tile."""

    stream: NDArray[np.float32]
    """[rows, dim]: the residual stream."""
    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]
    up: NDArray[np.float32]
    """[rows, ffn_dim], and at least dim: what an adapter makes of the stream."""
    rotated: NDArray[np.uint8]
    """[kv_heads, rows * group / 12, bytes]: queries, rotated and scaled."""
    cosines: NDArray[np.float32]
    sines: NDArray[np.float32]
    scores: NDArray[np.float32]
    """[threads, 14, width]."""
    mixed: NDArray[np.float32]
    """[regions of rows, spans, head_pad]: a span of a row comes to (int32 if scaled)."""
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
        """Buffers for passes of up to max(max_nodes, prefill_chunk) nodes of so many texts."""
        num_rows = tile.padded(max(max_nodes, prefill_chunk))
        q_dim, kv_dim = spec.num_heads * spec.head_dim, spec.kv_dim
        group = spec.num_heads // spec.num_kv_heads
        head_pad = round_up(spec.head_dim, 16)
        spans = -(-context_length // SPAN)
        rows = split_rows(spec, max_nodes, sequences)
        angles = max(each.rope.dim for each in spec.attentions if each.rope) // 2
        regions = max(spec.num_kv_heads * rows, threads * ROWS_PER_ITEM)

        def floats(*shape: int) -> NDArray[np.float32]:
            return np.zeros(shape, np.float32)

        return cls(
            stream=floats(num_rows, spec.dim),
            query=floats(num_rows, round_up(q_dim, 16)),
            key=floats(num_rows, round_up(kv_dim, 16)),
            value=floats(num_rows, round_up(kv_dim, 16)),
            up=floats(num_rows, round_up(max(spec.ffn_dim, spec.dim), 16)),
            rotated=np.zeros(
                (
                    spec.num_kv_heads,
                    query_rows(num_rows * group, sequences) // ROW_BLOCK,
                    query_bytes(spec.head_dim, kv_type),
                ),
                np.uint8,
            ),
            cosines=floats(num_rows, angles),
            sines=floats(num_rows, angles),
            scores=floats(threads, SCORES_ROWS, WIDTH),
            mixed=floats(regions, spans, head_pad),
            facts=floats(regions, 3, round_up(spans, 16)),
            logits=floats(tile.padded(max_nodes), round_up(spec.vocab_size, 16)),
            maxima=floats(tile.padded(max_nodes), round_up(spec.vocab_size, 16) // 16),
            normed=Rows.allocate(num_rows, spec.dim),
            attended=Rows.allocate(num_rows, q_dim),
            gated=Rows.allocate(num_rows, spec.ffn_dim),
        )

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
    """Rows of a key head when each text's begin a block, at most."""
    return round_up(num_rows + (sequences - 1) * (ROW_BLOCK - 1), ROW_BLOCK)


def split_rows(spec: ModelSpec, max_nodes: int, sequences: int) -> int:
    """Rows of a key head when threads share its spans, in whole blocks."""
    group, nodes = spec.num_heads // spec.num_kv_heads, min(SPLIT_NODES, max_nodes)
    return query_rows(nodes * group, min(sequences, nodes))


def query_bytes(head_dim: int, kv_type: str) -> int:
    """Bytes of 12 rows' queries: f32, or two int8 digits, a step and a start for each block."""
    if kv_type == "f16":
        return ROW_BLOCK * 4 * round_up(head_dim, 16)
    return ROW_BLOCK * (4 + -(-head_dim // SCALED) * (2 * SCALED + 4))


def fill_shape(c: NDArray[np.int64], spec: ModelSpec, max_nodes: int, sequences: int = 1) -> None:
    """Enter the architecture's numbers and the row operations."""
    c[table.SPLIT_NODES] = min(SPLIT_NODES, max_nodes)
    c[table.SPLIT_ROWS] = split_rows(spec, max_nodes, sequences)
    c[table.NUM_HEADS] = spec.num_heads
    c[table.NUM_KV_HEADS] = spec.num_kv_heads
    c[table.HEAD_DIM] = spec.head_dim
    c[table.HEAD_PAD] = round_up(spec.head_dim, 16)
    c[table.DIM] = spec.dim
    c[table.VOCAB_SIZE] = spec.vocab_size
    c[table.FFN_DIM] = spec.ffn_dim
    plain = spec.attentions[0]
    assert plain.rope is not None
    interleaved = plain.rope.layout == "interleaved"
    c[table.ROPE_HALF] = plain.rope.dim // 2
    c[table.INTERLEAVED] = interleaved
    c[table.QK_NORM] = plain.query_norm is not None
    c[table.BIASED] = bool(plain.query.bias)
    c[table.EPSILON_BITS] = np.float32(spec.norm_epsilon).view(np.int32)
    c[table.QUERY_SCALE_BITS] = np.float32(1.0 / np.sqrt(spec.head_dim)).view(np.int32)
    c[table.UNIT_HEADS] = tile.TILE_ROWS // math.gcd(tile.TILE_ROWS, spec.head_dim)
    c[table.OPS : table.OPS + table.NUM_OPS] = isa.row_addresses(isa.chosen(), interleaved)


def fill_arena(c: NDArray[np.int64], arena: KvArena, head_dim: int) -> None:
    """Enter how the arena's blocks are laid out."""
    layout, scaled = arena.layout, arena.kv_type != "f16"
    c[table.BLOCK] = BLOCK
    c[table.HEAD_BYTES] = layout.head_bytes
    c[table.KEY_BYTES] = layout.key_bytes
    c[table.KEY_TILE_BYTES] = layout.key_tile_bytes
    c[table.KEY_SCALES] = layout.key_scales
    c[table.VALUE_BYTES] = layout.value_bytes
    c[table.VALUE_SCALES] = layout.value_scales
    c[table.KEY_STEPS] = -(-head_dim // (4 if scaled else 2))
    c[table.KV_SCALED] = scaled
    c[table.WEIGHT_BYTES] = 2 if scaled else 4
    addresses = isa.attention_addresses(isa.chosen(), arena.kv_type)
    c[table.ATTENTION : table.ATTENTION + table.NUM_ATTENTION] = addresses


def fill_scratch(c: NDArray[np.int64], scratch: Scratch) -> None:
    """Enter addresses and strides of all buffers."""
    two = ("stream", "query", "key", "value", "up")
    for place, name in zip(range(table.STREAM, table.COSINES, 2), two, strict=True):
        buffer = getattr(scratch, name)
        c[place : place + 2] = (buffer.ctypes.data, buffer.strides[0])
    c[table.COSINES], c[table.SINES] = scratch.cosines.ctypes.data, scratch.sines.ctypes.data
    c[table.ANGLE_STRIDE] = scratch.cosines.strides[0]
    c[table.ROTATED] = scratch.rotated.ctypes.data
    c[table.ROTATED_HEAD], c[table.ROTATED_BLOCK] = scratch.rotated.strides[:2]
    for place, buffer in (
        (table.SCORES, scratch.scores),
        (table.MIXED, scratch.mixed),
        (table.FACTS, scratch.facts),
    ):
        c[place : place + 2] = (buffer.ctypes.data, buffer.strides[0])
    c[table.LOGITS] = scratch.logits.ctypes.data
    c[table.LOGITS_STRIDE] = scratch.logits.strides[0]
    c[table.MAXIMA] = scratch.maxima.ctypes.data
    c[table.MAXIMA_STRIDE] = scratch.maxima.strides[0]
    for place, rows in zip(
        (table.NORMED, table.ATTENDED, table.GATED),
        (scratch.normed, scratch.attended, scratch.gated),
        strict=True,
    ):
        c[place : place + 8] = rows.describe()
