"""The first half of a gated part whose small gates are closed (Gemma 3n): a row's gates are needed
whole before any is known.
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

# The width, the operation (gate, up, output, vectors) that joins both, and the cut-off in standard
# deviations, as bits of an f32.
WIDTH, ACTIVATION, CUTOFF = range(t.ARGUMENTS, t.ARGUMENTS + 3)


@inner_kernel
def _cut(row, width, deviations):
    """Take the mean and so many standard deviations from a row, and what is below 0 is 0."""
    total = np.float64(0.0)
    for i in range(width):
        total += np.float64(load_float(row + 4 * i))
    mean, squares = total / width, np.float64(0.0)
    for i in range(width):
        off = np.float64(load_float(row + 4 * i)) - mean
        squares += off * off
    edge = np.float32(mean + deviations * np.sqrt(squares / (width - 1)))
    for i in range(width):
        store_float(row + 4 * i, max(load_float(row + 4 * i) - edge, np.float32(0.0)))


@entry
def cut(table, stage, thread):
    """This thread's rows of GATED = activation(cut gate) * up, quantised; gates are in GATED, and
    UP has the rest.
    """
    c = int64s_at(table, t.NUM_ENTRIES)
    width = word(stage, WIDTH)
    deviations = np.float64(bits_to_float(np.int32(word(stage, CUTOFF))))
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        place = c[t.GATED + t.FLOATS] + row * c[t.GATED + t.FLOATS_STRIDE]
        up = c[t.UP] + row * c[t.UP_STRIDE]
        _cut(place, width, deviations)
        call_row(word(stage, ACTIVATION), (place, up, place, (width + 15) >> 4))
        quantise_row(c, np.int64(t.GATED), row, np.int64(0), width)
    return 0
