"""Products with several matrices at once: of heads, or of streams, that have one each."""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.stages.rows import (
    UNIT,
    multiply_columns,
    quantise_row,
    unit_bytes,
)
from edgespec.backends.native.kernels.work_sharing import first_unit, next_unit
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry

# The heads' matrices, below each other; where the input's entries of the table start, and how many
# of its columns each head reads, 0 where all read the same; the output with its stride, outputs of
# a head, and bytes from one head's to the next; and where the output's entries start if it is an
# input to be quantised, or 0.
(MATRIX, INPUT, WIDTH, HEADS, OUTPUT, OUTPUT_STRIDE, ROWS, HEAD_BYTES, INTO) = range(
    t.ARGUMENTS, t.ARGUMENTS + 9
)


@entry
def heads(table, stage, thread):
    """This thread's share of each head's output = its columns of the input x its matrix."""
    c = int64s_at(table, t.NUM_ENTRIES)
    matrix, rows, num_rows = word(stage, MATRIX), word(stage, INPUT), c[t.NUM_ROWS]
    stride, into = word(stage, OUTPUT_STRIDE), word(stage, INTO)
    tiles = (word(stage, ROWS) + 15) >> 4
    units = (tiles + UNIT - 1) // UNIT
    count, num_bytes = word(stage, HEADS) * units, unit_bytes(matrix)
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        head, within = unit // units, unit % units * UNIT
        own = head * tiles
        first, last = own + within, own + min(within + UNIT, tiles)
        output = word(stage, OUTPUT) + head * word(stage, HEAD_BYTES)
        whole = (output - 64 * own, stride, np.int64(0))
        column = head * word(stage, WIDTH)
        multiply_columns(c, matrix, rows, column, num_rows, first, last, whole)
        if into != 0:
            begin = head * word(stage, ROWS) + 16 * within
            width = min(16 * UNIT, word(stage, ROWS) - 16 * within)
            for row in range(num_rows):
                quantise_row(c, into, row, begin, width)
        unit = next_unit(c, thread, unit, count, num_bytes)
    return 0
