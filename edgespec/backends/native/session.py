"""Scratch of a native session: every buffer the kernels write to, allocated once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import forward, tile
from edgespec.backends.native.kernels.attention import ROWS_PER_ITEM
from edgespec.models.spec import ModelSpec


class Scratch(NamedTuple):
    """Everything a session writes to; the rows feed the matmuls after each norm, attention and
    gate.
    """

    buffers: forward.Buffers
    normed: forward.Rows
    attended: forward.Rows
    gated: forward.Rows


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def shape_of(spec: ModelSpec) -> forward.Shape:
    """The architecture's numbers as kernels take them."""
    return forward.Shape(
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dim=spec.dim,
        ffn_dim=spec.ffn_dim,
        rope_dim=spec.rope_dim,
        interleaved=int(spec.rope_layout == "interleaved"),
        qk_norm=int(spec.qk_norm),
        epsilon_bits=int(np.float32(spec.norm_epsilon).view(np.int32)),
        query_scale=float(np.float32(1.0 / np.sqrt(spec.head_dim))),
    )


def rope_frequencies(spec: ModelSpec, factors: NDArray[np.float32] | None) -> NDArray[np.float64]:
    """Radians per position, f64 [rope_dim / 2]."""
    exponents = np.arange(0, spec.rope_dim, 2, dtype=np.float64) / spec.rope_dim
    frequencies = spec.rope_base**-exponents * spec.rope_scale
    return frequencies if factors is None else frequencies / factors.astype(np.float64)


def _rows(num_rows: int, width: int) -> forward.Rows:
    """Room for activations of this width; int8 forms exist for whole blocks only."""
    blocks = width // tile.BLOCK if width % tile.BLOCK == 0 else 0
    return forward.Rows(
        values=np.zeros((num_rows, round_up(width, 16)), np.float32),
        quants=np.zeros((num_rows, blocks * tile.BLOCK), np.int8),
        planes=np.zeros((tile.NUM_PLANES, num_rows, blocks), np.int32),
    )


def allocate(
    spec: ModelSpec, context_length: int, max_nodes: int, prefill_chunk: int, threads: int
) -> Scratch:
    """All buffers of a session; rows are padded to the largest tile."""
    num_rows = round_up(max(max_nodes, prefill_chunk), max(tile.INTEGER_SIZES))
    q_dim, kv_dim = spec.num_heads * spec.head_dim, spec.kv_dim
    group = spec.num_heads // spec.num_kv_heads
    head_pad = round_up(spec.head_dim, 16)
    slots = round_up(context_length + num_rows, 16)

    def floats(*shape: int) -> NDArray[np.float32]:
        return np.zeros(shape, np.float32)

    buffers = forward.Buffers(
        stream=floats(num_rows, spec.dim),
        query=floats(num_rows, round_up(q_dim, 16)),
        key=floats(num_rows, round_up(kv_dim, 16)),
        value=floats(num_rows, round_up(kv_dim, 16)),
        up=floats(num_rows, round_up(spec.ffn_dim, 16)),
        queries=floats(spec.num_kv_heads, num_rows * group, head_pad),
        cosines=floats(num_rows, spec.rope_dim // 2),
        sines=floats(num_rows, spec.rope_dim // 2),
        scores=floats(threads, ROWS_PER_ITEM, slots),
        mixed=floats(threads, ROWS_PER_ITEM, head_pad),
        inverse=floats(threads, ROWS_PER_ITEM),
        logits=floats(logits_rows(max_nodes), round_up(spec.vocab_size, 16)),
    )
    widths = (spec.dim, q_dim, spec.ffn_dim)
    return Scratch(buffers, *(_rows(num_rows, width) for width in widths))


def logits_rows(max_nodes: int) -> int:
    """Rows of logits: the most that any type's smallest tiles that hold `max_nodes` write."""
    tables = (tile.INTEGER_SIZES, tile.FLOAT_SIZES)
    return max(
        next((size for size in sizes if size >= max_nodes), round_up(max_nodes, sizes[-1]))
        for sizes in tables
    )


def size_bytes(value: Any) -> int:
    """Bytes of all arrays in a (nested) tuple of buffers."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(size_bytes(part) for part in value) if isinstance(value, tuple) else 0
