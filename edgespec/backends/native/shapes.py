"""Layers by the shape of their attention: each shape has a table of its own and an arena."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.attention.spans import ROW_BLOCK, SPAN, SPLIT_NODES
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.kv.forms import FORMS
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.scratch import (
    Scratch,
    block_bytes,
    head_bytes,
    split_rows,
)
from edgespec.memory.kv.arena import BLOCK, LATENT, KvArena
from edgespec.memory.plan.kv_sizes import kept_positions, shape_of
from edgespec.memory.plan.state_layout import round_up
from edgespec.models.file import ModelFile
from edgespec.models.layers import Attention, Rope, attention_of
from edgespec.models.spec import ModelSpec


def rope_frequencies(rope: Rope, factors: NDArray[np.float32] | None) -> NDArray[np.float64]:
    """Radians per position, f64 [dim / 2].

    Source: "YaRN: Efficient Context Window Extension of Large Language Models", definition 2, for
    those that are extended by it.
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    frequencies: NDArray[np.float64] = rope.base**-exponents
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    if not rope.yarn:
        return frequencies * rope.scale

    def edge(turns: float) -> float:
        """The pair that turns so often in the original context."""
        ratio = rope.original_context / (turns * 2 * math.pi)
        return rope.dim * math.log(ratio) / (2 * math.log(rope.base))

    low = max(0.0, math.floor(edge(rope.beta_fast)))
    high = min(rope.dim - 1.0, math.ceil(edge(rope.beta_slow)))
    ramp = (np.arange(rope.dim // 2) - low) / max(0.001, high - low)
    kept = rope.yarn * (1.0 - np.clip(ramp, 0.0, 1.0))
    extended: NDArray[np.float64] = frequencies * (rope.scale * (1.0 - kept) + kept)
    return extended


class Shape:
    """One shape of attention: its layers, its arena, and what its table is to hold."""

    def __init__(
        self,
        attention: Attention,
        layers: list[int],
        spec: ModelSpec,
        file: ModelFile,
        context: int,
    ) -> None:
        self.attention = attention
        self.layers = layers
        """Those that have keys and values of their own, in the arena's order."""
        self.ahead = int(spec.borrows_keys)
        """How far its queries stand behind the last position that they see, where they do not see
        their own: they are described as that one's.
        """
        self._spec = spec
        growth = attention.position_scale
        slope, offset = (growth.slope, growth.offset) if growth else (0.0, 0.0)
        self._growth = np.array([slope, offset])
        rope = attention.rope
        name = ""
        if rope is not None:
            is_long = rope.long_factors and context > rope.original_context
            name = rope.long_factors if is_long else rope.factors
        factors = file.matrix_f32(name).ravel() if name else None
        self._frequencies = np.zeros(0) if rope is None else rope_frequencies(rope, factors)

    @property
    def rotation(self) -> str:
        """A hash of how positions turn keys, which the context decides where factors are long."""
        return hashlib.blake2b(self._frequencies.tobytes(), digest_size=8).hexdigest()

    def arena(self, context: int, kv_type: str, sequences: int, rows: int) -> KvArena:
        """Blocks for so many positions of so many sequences, in passes of up to so many rows."""
        own = self.attention
        reach = kept_positions(own, context, rows) if own.reach else 0
        heads = own.kv_heads, own.head_dim
        kept_as = LATENT if own.latent else kv_type
        return KvArena(len(self.layers), *heads, context, kept_as, sequences, reach)

    def first_needed(self, length: int) -> int:
        """The first position that a sequence of this length still reads."""
        own, first = self.attention, 0
        if own.window:
            first = max(length - own.window + 1, 0)
        elif own.chunk:
            first = length // own.chunk * own.chunk
        return first // SPAN * SPAN

    def angle_arrays(self, num_rows: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Room for cosines and sines, f32 [rows, pairs]."""
        pairs = len(self._frequencies)
        return np.zeros((num_rows, pairs), np.float32), np.zeros((num_rows, pairs), np.float32)

    def fill(self, c: NDArray[np.int64], max_nodes: int, sequences: int) -> None:
        """Enter the shape's own entries."""
        own, rope = self.attention, self.attention.rope
        interleaved = rope is not None and rope.layout == "interleaved"
        c[table.NUM_HEADS], c[table.NUM_KV_HEADS] = own.heads, own.kv_heads
        c[table.HEAD_DIM], c[table.VALUE_DIM] = own.head_dim, own.value_dim
        c[table.ROPE_HALF], c[table.INTERLEAVED] = len(self._frequencies), interleaved
        c[table.QUERY_SCALE_BITS] = float_bits(own.scale)
        c[table.NORM_AFTER_ROPE] = own.norm_after_rope
        c[table.UNIT_HEADS] = tile.TILE_ROWS // math.gcd(tile.TILE_ROWS, own.head_dim)
        c[table.WINDOW] = own.window - self.ahead if own.window else 0
        c[table.CHUNK], c[table.AHEAD] = own.chunk, self.ahead
        c[table.SOFTCAP_BITS] = float_bits(own.softcap)
        name = isa.chosen()
        if own.softcap:
            c[table.SOFTCAP] = isa.activation_address(name, "softcap")
        if own.position_scale is not None:
            c[table.GROWTH_SPAN] = own.position_scale.span
            c[table.GROWTH_SLOPE] = self._growth.ctypes.data
            c[table.GROWTH_OFFSET] = self._growth.ctypes.data + self._growth.itemsize
        c[table.FREQUENCIES] = self._frequencies.ctypes.data
        c[table.MAGNITUDE] = np.float64(1.0 if rope is None else rope.magnitude).view(np.int64)
        c[table.SPLIT_NODES] = min(SPLIT_NODES, max_nodes)
        c[table.SPLIT_ROWS] = split_rows(own, max_nodes, sequences)
        c[table.OPS : table.OPS + table.NUM_OPS] = isa.row_addresses(name, interleaved)

    def fill_arena(self, c: NDArray[np.int64], arena: KvArena) -> None:
        """Enter how the arena's blocks are laid out."""
        layout, head_dim = arena.layout, self.attention.head_dim
        is_latent, scaled = arena.kv_type == LATENT, arena.kv_type in FORMS
        c[table.BLOCK] = BLOCK
        c[table.HEAD_BYTES] = layout.head_bytes
        c[table.KEY_BYTES] = layout.key_bytes
        c[table.KEY_TILE_BYTES] = layout.key_tile_bytes
        c[table.KEY_SCALES] = layout.key_scales
        c[table.VALUE_BYTES] = layout.value_bytes
        c[table.VALUE_SCALES] = layout.value_scales
        c[table.KEY_STEPS] = -(-head_dim // (16 if is_latent else 4 if scaled else 2))
        c[table.KV_SCALED] = scaled
        c[table.WEIGHT_BYTES] = 2 if scaled else 4
        places = (4, 4 * round_up(head_dim, 16)) if is_latent else (4 * ROW_BLOCK, 4)
        c[table.QUERY_STEP], c[table.QUERY_ROW] = places
        addresses = isa.attention_addresses(isa.chosen(), arena.kv_type)
        c[table.ATTENTION : table.ATTENTION + table.NUM_ATTENTION] = addresses

    def fill_queries(
        self, c: NDArray[np.int64], scratch: Scratch, kv_type: str, sequences: int
    ) -> None:
        """Enter how the queries of a key head lie, of 12 rows together."""
        num_rows = len(scratch.stream)
        c[table.ROTATED_HEAD] = head_bytes(self.attention, num_rows, kv_type, sequences)
        c[table.ROTATED_BLOCK] = block_bytes(self.attention.head_dim, kv_type)


def float_bits(value: float) -> int:
    """The bits of the nearest f32."""
    return int(np.float32(value).view(np.int32))


def shapes_of(spec: ModelSpec, file: ModelFile, context: int) -> list[Shape]:
    """All shapes of a model, in the order of their first layers."""
    layers: dict[Attention, list[int]] = {}
    for number, layer in enumerate(spec.layers):
        attention = attention_of(layer)
        if attention is not None:
            own = layers.setdefault(shape_of(attention), [])
            if attention.shares is None:
                own.append(number)
    return [Shape(shape, own, spec, file, context) for shape, own in layers.items()]
