"""Attention of a layer: all threads' shares of it, and putting together what they found."""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.attention.grouped_query import attend_share, finish_node
from edgespec.backends.native.kernels.codegen.intrinsics import call_row
from edgespec.backends.native.kernels.stages.rows import quantise_row
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry

# The layer's place in the arena, scores f32 [heads] of sinks or 0, and of finishing: the operation
# (values, gates, output, vectors) for what is gated, or 0.
LAYER, SINKS, GATING = range(t.ARGUMENTS, t.ARGUMENTS + 3)


@entry
def attend(table, stage, thread):
    """This thread's share of attention."""
    c = int64s_at(table, t.NUM_ENTRIES)
    attend_share(c, thread, word(stage, LAYER), word(stage, SINKS), c[t.NUM_ROWS])
    return 0


@entry
def finish(table, stage, thread):
    """This thread's rows of ATTENDED, gated and quantised."""
    c = int64s_at(table, t.NUM_ENTRIES)
    num_rows, width = c[t.NUM_ROWS], c[t.NUM_HEADS] * c[t.VALUE_DIM]
    for row in range(thread, num_rows, c[t.THREADS]):
        finish_node(c, row, num_rows, word(stage, SINKS))
        if word(stage, GATING) != 0:
            place = c[t.ATTENDED + t.FLOATS] + row * c[t.ATTENDED + t.FLOATS_STRIDE]
            gates = c[t.GATES] + row * c[t.GATES_STRIDE]
            call_row(word(stage, GATING), (place, gates, place, (width + 15) >> 4))
        quantise_row(c, np.int64(t.ATTENDED), row, np.int64(0), width)
    return 0
