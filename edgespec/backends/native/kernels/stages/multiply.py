"""A product of rows with a matrix, and the product that gives the logits."""

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
    add_bias,
    multiply_tiles,
    unit_bytes,
)
from edgespec.backends.native.kernels.work_sharing import first_unit, next_unit
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry, inner_kernel

# The matrix, where its input's entries of the table start, the output with its stride, 1 to add to
# it, and the bias or 0.
MATRIX, INPUT, OUTPUT, OUTPUT_STRIDE, ACCUMULATE, BIAS = range(t.ARGUMENTS, t.ARGUMENTS + 6)
# Of logits: whether anything is done to them, their factor as bits of an f32, and the operation
# that caps them softly, or 0, with the cap as bits of an f32.
IS_SHAPED, FACTOR, CAP, CAP_BITS = range(t.ARGUMENTS + 6, t.ARGUMENTS + 10)


@entry
def multiply(table, stage, thread):
    """This thread's share of output[n] = rows[n] x matrix."""
    c = int64s_at(table, t.NUM_ENTRIES)
    matrix, rows, num_rows = word(stage, MATRIX), word(stage, INPUT), c[t.NUM_ROWS]
    output, stride = word(stage, OUTPUT), word(stage, OUTPUT_STRIDE)
    count = (load_long(matrix + 8 * t.NUM_TILES) + UNIT - 1) // UNIT
    num_bytes = unit_bytes(matrix)
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        first, last, accumulate = unit * UNIT, unit * UNIT + UNIT, word(stage, ACCUMULATE)
        multiply_tiles(c, matrix, rows, num_rows, first, last, output, stride, accumulate)
        add_bias(matrix, word(stage, BIAS), num_rows, first, last, output, stride)
        unit = next_unit(c, thread, unit, count, num_bytes)
    return 0


@inner_kernel
def _shape(stage, row, num_tiles):
    """Scale and cap a row's logits of some tiles."""
    factor = bits_to_float(np.int32(word(stage, FACTOR)))
    for i in range(16 * num_tiles):
        store_float(row + 4 * i, load_float(row + 4 * i) * factor)
    if word(stage, CAP) != 0:
        call_row(word(stage, CAP), (row, row, num_tiles, word(stage, CAP_BITS)))


@entry
def logits(table, stage, thread):
    """This thread's share of the logits, with the largest of every 16 while these are cached."""
    c = int64s_at(table, t.NUM_ENTRIES)
    matrix, rows, num_rows = word(stage, MATRIX), word(stage, INPUT), c[t.NUM_ROWS]
    num_tiles = load_long(matrix + 8 * t.NUM_TILES)
    count, num_bytes = (num_tiles + UNIT - 1) // UNIT, unit_bytes(matrix)
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        first, last = unit * UNIT, min(unit * UNIT + UNIT, num_tiles)
        output, stride = c[t.LOGITS], c[t.LOGITS_STRIDE]
        multiply_tiles(c, matrix, rows, num_rows, first, last, output, stride, 0)
        output += 64 * first
        if word(stage, IS_SHAPED) != 0:
            for row in range(num_rows):
                _shape(stage, output + row * stride, last - first)
        call_row(
            c[t.OPS + t.TILE_MAXIMA],
            (
                output,
                stride,
                num_rows,
                last - first,
                c[t.VOCAB_SIZE] - 16 * first,
                c[t.MAXIMA] + 4 * first,
                c[t.MAXIMA_STRIDE],
            ),
        )
        unit = next_unit(c, thread, unit, count, num_bytes)
    return 0
