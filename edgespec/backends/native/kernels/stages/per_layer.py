"""Embeddings of a token for every layer (Gemma 3n and 4): made once a pass, used in each layer."""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import (
    bits_to_float,
    call_row,
    load_float,
    load_long,
    store_float,
)
from edgespec.backends.native.kernels.stages.rows import (
    UNIT,
    multiply_tiles,
    quantise_row,
    unit_bytes,
)
from edgespec.backends.native.kernels.work_sharing import first_unit, next_unit
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry

# Rows of embeddings f32 [rows, layers * width] with their stride, and the same of what the token's
# own embedding was projected to; layers, the width of each and the gain of the norm; and factors of
# the projected, the embedded and their sum, as bits of f32.
(EXTRA, EXTRA_STRIDE, PROJECTED, PROJECTED_STRIDE, LAYERS, WIDTH, GAIN, PROJECTED_FACTOR,
 EXTRA_FACTOR, SUM_FACTOR) = range(t.ARGUMENTS, t.ARGUMENTS + 10)  # fmt: skip
# Of a layer: the gate's matrix and the operation that joins it with the layer's own embeddings,
# whose first is at OWN.
GATE, ACTIVATION, OWN, OWN_STRIDE, OWN_WIDTH = range(t.ARGUMENTS, t.ARGUMENTS + 5)


@entry
def embed(table, stage, thread):
    """This thread's rows of EXTRA: (embedded + normed projected) times the factors."""
    c = int64s_at(table, t.NUM_ENTRIES)
    width = word(stage, WIDTH)
    scale = bits_to_float(np.int32(word(stage, PROJECTED_FACTOR)))
    own_scale = bits_to_float(np.int32(word(stage, EXTRA_FACTOR)))
    whole = bits_to_float(np.int32(word(stage, SUM_FACTOR)))
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        extra = word(stage, EXTRA) + row * word(stage, EXTRA_STRIDE)
        made = word(stage, PROJECTED) + row * word(stage, PROJECTED_STRIDE)
        for i in range(word(stage, LAYERS) * width):
            store_float(made + 4 * i, load_float(made + 4 * i) * scale)
        for layer in range(word(stage, LAYERS)):
            own, place = made + 4 * layer * width, extra + 4 * layer * width
            gain = word(stage, GAIN)
            call_row(c[t.OPS + t.NORM], (own, gain, own, width >> 4, c[t.EPSILON_BITS]))
            for i in range(width):
                added = load_float(own + 4 * i) + load_float(place + 4 * i) * own_scale
                store_float(place + 4 * i, added * whole)
    return 0


@entry
def gate(table, stage, thread):
    """This thread's share of GATED = activation(gate x NORMED) * the layer's embeddings."""
    c = int64s_at(table, t.NUM_ENTRIES)
    matrix, rows, num_rows = word(stage, GATE), np.int64(t.NORMED), c[t.NUM_ROWS]
    count = (load_long(matrix + 8 * t.NUM_TILES) + UNIT - 1) // UNIT
    num_bytes = unit_bytes(matrix)
    floats, stride = c[t.GATED + t.FLOATS], c[t.GATED + t.FLOATS_STRIDE]
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        first, last = unit * UNIT, unit * UNIT + UNIT
        multiply_tiles(c, matrix, rows, num_rows, first, last, floats, stride, 0)
        width = min(16 * UNIT, word(stage, OWN_WIDTH) - 16 * first)
        for row in range(num_rows):
            place = floats + row * stride + 64 * first
            own = word(stage, OWN) + row * word(stage, OWN_STRIDE) + 64 * first
            call_row(word(stage, ACTIVATION), (place, own, place, (width + 15) >> 4))
            quantise_row(c, np.int64(t.GATED), row, 16 * first, width)
        unit = next_unit(c, thread, unit, count, num_bytes)
    return 0
