"""The stages of a layer with experts: router, route, fetch, gate and up, down; and one that joins
branches.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import call_row
from edgespec.backends.native.kernels.moe import experts, fetching, routing
from edgespec.backends.native.kernels.stages.norm import ONE_BITS
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry

# The address of the layer's words (`words.py`).
LAYER = t.ARGUMENTS
# Of joining: rows that others are added to, and these; of both the stride and the gain of the norm
# before, or 0; and the operation that adds.
(LEFT, LEFT_STRIDE, LEFT_GAIN, RIGHT, RIGHT_STRIDE, RIGHT_GAIN, ADD_SCALED) = range(
    t.ARGUMENTS, t.ARGUMENTS + 7
)


@entry
def router(table, stage, thread):
    """This thread's share of the router's logits, from NORMED."""
    c = int64s_at(table, t.NUM_ENTRIES)
    experts.router_share(c, word(stage, LAYER), thread, c[t.NUM_ROWS])
    return 0


@entry
def route(table, stage, thread):
    """This thread's rows routed; then all are grouped by expert."""
    c = int64s_at(table, t.NUM_ENTRIES)
    routing.route_rows(word(stage, LAYER), thread, c[t.THREADS], c[t.NUM_ROWS])
    return 0


@entry
def fetch(table, stage, thread):
    """Experts with rows that are not in memory brought there by who reads them from disk; the other
    threads wait at the barrier.
    """
    if thread == 0:
        fetching.fetch(int64s_at(table, t.NUM_ENTRIES), word(stage, LAYER))
    return 0


@entry
def gate_up(table, stage, thread):
    """This thread's share of activation(gate) * up, from NORMED."""
    c = int64s_at(table, t.NUM_ENTRIES)
    experts.gate_up_share(c, word(stage, LAYER), thread, c[t.NUM_ROWS])
    return 0


@entry
def down(table, stage, thread):
    """This thread's share of what the experts give."""
    c = int64s_at(table, t.NUM_ENTRIES)
    experts.down_share(c, word(stage, LAYER), thread, c[t.NUM_ROWS])
    return 0


@entry
def join(table, stage, thread):
    """This thread's rows of two branches: each normed in place, then the second added."""
    c = int64s_at(table, t.NUM_ENTRIES)
    vectors = c[t.DIM] >> 4
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        left = word(stage, LEFT) + row * word(stage, LEFT_STRIDE)
        right = word(stage, RIGHT) + row * word(stage, RIGHT_STRIDE)
        for place, gain in ((left, word(stage, LEFT_GAIN)), (right, word(stage, RIGHT_GAIN))):
            if gain != 0:
                call_row(c[t.OPS + t.NORM], (place, gain, place, vectors, c[t.EPSILON_BITS]))
        call_row(word(stage, ADD_SCALED), (right, left, vectors, np.int64(ONE_BITS)))
    return 0
