"""Between two parts of a layer: what the last one gave joins the residual stream, and the stream's
rows are normed into NORMED for the next.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import (
    bits_to_float,
    call_row,
    load_float,
    store_float,
)
from edgespec.backends.native.kernels.stages.rows import quantise_row
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry, inner_kernel

# The rows that join the stream, or 0, with their stride, the gain of the norm before they join, or
# 0, and their factor as bits of an f32; the factor of the whole stream after that; and the gain of
# the norm into NORMED, or 0 for none, and then whether NORMED is the stream as it is. A norm
# without a gain is handed ones. Then where the rows that are normed lie if that is not the stream.
(JOINING, JOINING_STRIDE, JOINING_GAIN, JOINING_FACTOR, STREAM_FACTOR, GAIN, IS_NORMED, SOURCE,
 SOURCE_STRIDE) = range(t.ARGUMENTS, t.ARGUMENTS + 9)  # fmt: skip
ONE_BITS = 0x3F800000


@inner_kernel
def norm_row(c, source, gain, target):
    """Norm a row [dim] at an address into a row of NORMED, and quantise it."""
    place = c[t.NORMED + t.FLOATS] + target * c[t.NORMED + t.FLOATS_STRIDE]
    call_row(c[t.OPS + t.NORM], (source, gain, place, c[t.DIM] >> 4, c[t.EPSILON_BITS]))
    quantise_row(c, np.int64(t.NORMED), target, np.int64(0), c[t.DIM])


@inner_kernel
def _copy_row(c, source, target):
    """A row [dim] as it is into a row of NORMED, quantised."""
    place = c[t.NORMED + t.FLOATS] + target * c[t.NORMED + t.FLOATS_STRIDE]
    for i in range(c[t.DIM]):
        store_float(place + 4 * i, load_float(source + 4 * i))
    quantise_row(c, np.int64(t.NORMED), target, np.int64(0), c[t.DIM])


@inner_kernel
def _join(c, stage, stream, joining):
    """Add a row to the stream's, and scale that."""
    if word(stage, JOINING_GAIN) != 0:
        gain = word(stage, JOINING_GAIN)
        call_row(c[t.OPS + t.NORM], (joining, gain, joining, c[t.DIM] >> 4, c[t.EPSILON_BITS]))
    factor = bits_to_float(np.int32(word(stage, JOINING_FACTOR)))
    scale = bits_to_float(np.int32(word(stage, STREAM_FACTOR)))
    for i in range(c[t.DIM]):
        added = load_float(stream + 4 * i) + load_float(joining + 4 * i) * factor
        store_float(stream + 4 * i, added * scale)


@entry
def norm(table, stage, thread):
    """This thread's rows of a norm."""
    c = int64s_at(table, t.NUM_ENTRIES)
    joining, gain = word(stage, JOINING), word(stage, GAIN)
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        stream = c[t.STREAM] + (c[t.FIRST_ROW] + row) * c[t.STREAM_STRIDE]
        if joining != 0:
            _join(c, stage, stream, joining + row * word(stage, JOINING_STRIDE))
        if word(stage, SOURCE) != 0:
            stream = word(stage, SOURCE) + row * word(stage, SOURCE_STRIDE)
        if gain != 0:
            norm_row(c, stream, gain, row)
        elif word(stage, IS_NORMED) != 0:
            _copy_row(c, stream, row)
    return 0
