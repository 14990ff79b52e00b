"""Between a model and a draft head: streams that are left for the head, and what it makes of them
and its tokens.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import (
    call_row,
    load_float,
    store_float,
)
from edgespec.backends.native.kernels.stages.rows import quantise_row
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry, inner_kernel

# Where rows are left, with their stride, and the gain of the norm before, or 0 for the stream as it
# is.
LEFT, LEFT_STRIDE, LEFT_GAIN = range(t.ARGUMENTS, t.ARGUMENTS + 3)
# Rows that are gathered, their stride and width, and the gain of the norm of all of it, or 0.
SOURCE, SOURCE_STRIDE, WIDTH, GAIN = range(t.ARGUMENTS, t.ARGUMENTS + 4)
# States and their stride, the gains of both norms, and what becomes the stream: nothing, the state,
# or the state as it is normed.
STATES, STATES_STRIDE, TOKEN_GAIN, STATE_GAIN, KEPT = range(t.ARGUMENTS, t.ARGUMENTS + 5)
NOTHING, STATE, NORMED_STATE = range(3)


@inner_kernel
def _copy(source, target, width):
    for i in range(width):
        store_float(target + 4 * i, load_float(source + 4 * i))


@inner_kernel
def _norm(c, source, gain, target, width):
    call_row(c[t.OPS + t.NORM], (source, gain, target, width >> 4, c[t.EPSILON_BITS]))


@entry
def leave(table, stage, thread):
    """This thread's rows of the residual stream, left as they are or normed."""
    c = int64s_at(table, t.NUM_ENTRIES)
    gain = word(stage, LEFT_GAIN)
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        stream = c[t.STREAM] + row * c[t.STREAM_STRIDE]
        place = word(stage, LEFT) + row * word(stage, LEFT_STRIDE)
        if gain != 0:
            _norm(c, stream, gain, place, c[t.DIM])
        else:
            _copy(stream, place, c[t.DIM])
    return 0


@entry
def gather(table, stage, thread):
    """This thread's rows that were left, into ATTENDED."""
    c = int64s_at(table, t.NUM_ENTRIES)
    width, gain = word(stage, WIDTH), word(stage, GAIN)
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        source = word(stage, SOURCE) + row * word(stage, SOURCE_STRIDE)
        place = c[t.ATTENDED + t.FLOATS] + row * c[t.ATTENDED + t.FLOATS_STRIDE]
        if gain != 0:
            _norm(c, source, gain, place, width)
        else:
            _copy(source, place, width)
        quantise_row(c, np.int64(t.ATTENDED), row, np.int64(0), width)
    return 0


@entry
def pair(table, stage, thread):
    """This thread's rows of tokens, whose embeddings are in the stream, and states, side by side in
    NORMED.
    """
    c = int64s_at(table, t.NUM_ENTRIES)
    dim, kept = c[t.DIM], word(stage, KEPT)
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        stream = c[t.STREAM] + row * c[t.STREAM_STRIDE]
        state = word(stage, STATES) + row * word(stage, STATES_STRIDE)
        place = c[t.NORMED + t.FLOATS] + row * c[t.NORMED + t.FLOATS_STRIDE]
        _norm(c, stream, word(stage, TOKEN_GAIN), place, dim)
        _norm(c, state, word(stage, STATE_GAIN), place + 4 * dim, dim)
        quantise_row(c, np.int64(t.NORMED), row, np.int64(0), 2 * dim)
        if kept == STATE:
            _copy(state, stream, dim)
        elif kept == NORMED_STATE:
            _copy(place + 4 * dim, stream, dim)
    return 0
