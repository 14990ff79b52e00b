"""The first half of a gated feed-forward part: gate and up meet while both are in the cache."""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import call_row, load_long
from edgespec.backends.native.kernels.stages.rows import (
    UNIT,
    add_bias,
    multiply_tiles,
    quantise_row,
    unit_bytes,
)
from edgespec.backends.native.kernels.work_sharing import first_unit, next_unit
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry

# The two matrices and their biases or 0, the width of both, and the operation (gate, up, output,
# vectors) that joins them.
GATE, UP, GATE_BIAS, UP_BIAS, WIDTH, ACTIVATION = range(t.ARGUMENTS, t.ARGUMENTS + 6)


@entry
def gated(table, stage, thread):
    """This thread's share of GATED = activation(gate) * up, quantised."""
    c = int64s_at(table, t.NUM_ENTRIES)
    gate, up, rows = word(stage, GATE), word(stage, UP), np.int64(t.NORMED)
    num_rows, stage_width = c[t.NUM_ROWS], word(stage, WIDTH)
    count = (load_long(gate + 8 * t.NUM_TILES) + UNIT - 1) // UNIT
    num_bytes = unit_bytes(gate) + unit_bytes(up)
    floats, stride = c[t.GATED + t.FLOATS], c[t.GATED + t.FLOATS_STRIDE]
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        first, last = unit * UNIT, unit * UNIT + UNIT
        multiply_tiles(c, gate, rows, num_rows, first, last, floats, stride, 0)
        multiply_tiles(c, up, rows, num_rows, first, last, c[t.UP], c[t.UP_STRIDE], 0)
        add_bias(gate, word(stage, GATE_BIAS), num_rows, first, last, floats, stride)
        add_bias(up, word(stage, UP_BIAS), num_rows, first, last, c[t.UP], c[t.UP_STRIDE])
        width = min(16 * UNIT, stage_width - 16 * first)
        for row in range(num_rows):
            place = floats + row * stride + 64 * first
            other = c[t.UP] + row * c[t.UP_STRIDE] + 64 * first
            call_row(word(stage, ACTIVATION), (place, other, place, (width + 15) >> 4))
            quantise_row(c, np.int64(t.GATED), row, 16 * first, width)
        unit = next_unit(c, thread, unit, count, num_bytes)
    return 0
