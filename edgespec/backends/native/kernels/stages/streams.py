"""Several residual streams, of which layers work on the first (Gemma 3n): AltUp and LAuReL.

STREAM is the first stream; OTHERS holds the others of a row side by side. Before a layer all are
predicted, and the first one's prediction is kept; after it all are corrected by what came out.
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
from edgespec.backends.native.kernels.stages.rows import add, quantise_row
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry, inner_kernel

# Of all: how many streams there are, the others with the stride of their rows, and rows of what all
# are predicted to be.
STREAMS, OTHERS, OTHERS_STRIDE, PREDICTED, PREDICTED_STRIDE = range(t.ARGUMENTS, t.ARGUMENTS + 5)
# Of predicting and correcting: rows of the router's products, to 16, and then of coefficients, with
# their stride; the factor of the products as bits of an f32; the operation (input, output, vectors)
# that makes modes of them; the matrix that makes coefficients of these, f32 by rows; and of
# correcting, gains that the first stream takes on the way to NORMED.
MODES, MODES_STRIDE, MODES_FACTOR, TANH, COEFFICIENTS, CORRECT_SCALE = range(
    t.ARGUMENTS + 5, t.ARGUMENTS + 11
)
# Of adding to the others: rows [dim] with their stride, and the gain of the norm before. Of adding
# to the first, and to what is normed: the same.
ADDED, ADDED_STRIDE, ADDED_GAIN = range(t.ARGUMENTS + 5, t.ARGUMENTS + 8)


@inner_kernel
def _squares(row, width):
    """The sum of a row's squares."""
    total = np.float64(0.0)
    for i in range(width):
        value = np.float64(load_float(row + 4 * i))
        total += value * value
    return total


@inner_kernel
def _lengthen(row, width, squares):
    """Bring a row to the length whose square this is."""
    factor = np.float32(np.sqrt(squares / _squares(row, width)))
    for i in range(width):
        store_float(row + 4 * i, load_float(row + 4 * i) * factor)


@inner_kernel
def _stream(c, stage, row, index):
    """Where a row of a stream is."""
    if index == 0:
        return c[t.STREAM] + (c[t.FIRST_ROW] + row) * c[t.STREAM_STRIDE]
    others = word(stage, OTHERS) + (c[t.FIRST_ROW] + row) * word(stage, OTHERS_STRIDE)
    return others + 4 * (index - 1) * c[t.DIM]


@entry
def begin(table, stage, thread):
    """This thread's rows of the other streams, projected before, as long as the first."""
    c = int64s_at(table, t.NUM_ENTRIES)
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        squares = _squares(_stream(c, stage, row, np.int64(0)), c[t.DIM])
        for index in range(1, word(stage, STREAMS)):
            _lengthen(_stream(c, stage, row, index), c[t.DIM], squares)
    return 0


@inner_kernel
def _coefficients(stage, row, count):
    """So many coefficients of a row, by its modes; returns where they are."""
    modes = word(stage, MODES) + row * word(stage, MODES_STRIDE)
    factor = bits_to_float(np.int32(word(stage, MODES_FACTOR)))
    for i in range(16):
        store_float(modes + 4 * i, load_float(modes + 4 * i) * factor)
    call_row(word(stage, TANH), (modes, modes, np.int64(1)))
    streams = word(stage, STREAMS)
    for index in range(count):
        total = np.float32(0.0)
        for i in range(streams):
            place = word(stage, COEFFICIENTS) + 4 * (index * streams + i)
            total += load_float(place) * load_float(modes + 4 * i)
        store_float(modes + 64 + 4 * index, total)
    return modes + 64


@inner_kernel
def _add_times(target, source, factor, count):
    """target[count] += factor * source[count], f32 at two addresses."""
    for i in range(count):
        added = factor * load_float(source + 4 * i)
        store_float(target + 4 * i, load_float(target + 4 * i) + added)


@inner_kernel
def _copy(target, source, count):
    """target[count] = source[count], f32 at two addresses."""
    for i in range(count):
        store_float(target + 4 * i, load_float(source + 4 * i))


@entry
def predict(table, stage, thread):
    """This thread's rows of what the streams are predicted to be: each, and its share of all."""
    c = int64s_at(table, t.NUM_ENTRIES)
    streams, dim = word(stage, STREAMS), c[t.DIM]
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        shares = _coefficients(stage, row, streams * streams)
        predicted = word(stage, PREDICTED) + row * word(stage, PREDICTED_STRIDE)
        for index in range(streams):
            target = predicted + 4 * index * dim
            _copy(target, _stream(c, stage, row, index), dim)
            for other in range(streams):
                share = load_float(shares + 4 * (index * streams + other))
                _add_times(target, _stream(c, stage, row, other), share, dim)
        _copy(_stream(c, stage, row, np.int64(0)), predicted, dim)
    return 0


@entry
def correct(table, stage, thread):
    """This thread's rows of the streams: what was predicted, and a share of what the layer came to
    beyond its own prediction; and the first one scaled into NORMED.
    """
    c = int64s_at(table, t.NUM_ENTRIES)
    streams, dim = word(stage, STREAMS), c[t.DIM]
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        shares = _coefficients(stage, row, streams)
        predicted = word(stage, PREDICTED) + row * word(stage, PREDICTED_STRIDE)
        first = _stream(c, stage, row, np.int64(0))
        _add_times(first, predicted, np.float32(-1.0), dim)
        for index in range(1, streams):
            target, share = _stream(c, stage, row, index), load_float(shares + 4 * index)
            _copy(target, predicted + 4 * index * dim, dim)
            _add_times(target, first, share + np.float32(1.0), dim)
        _add_times(predicted, first, load_float(shares) + np.float32(1.0), dim)
        _copy(first, predicted, dim)
        place = c[t.NORMED + t.FLOATS] + row * c[t.NORMED + t.FLOATS_STRIDE]
        for i in range(dim):
            gain = load_float(word(stage, CORRECT_SCALE) + 4 * i)
            store_float(place + 4 * i, load_float(first + 4 * i) * gain)
        quantise_row(c, np.int64(t.NORMED), row, np.int64(0), dim)
    return 0


@inner_kernel
def _normed(c, stage, row):
    """A row that is added, normed in place; returns where it is."""
    added, gain = word(stage, ADDED) + row * word(stage, ADDED_STRIDE), word(stage, ADDED_GAIN)
    call_row(c[t.OPS + t.NORM], (added, gain, added, c[t.DIM] >> 4, c[t.EPSILON_BITS]))
    return added


@entry
def add_to_others(table, stage, thread):
    """This thread's rows, normed, added to the other streams."""
    c = int64s_at(table, t.NUM_ENTRIES)
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        added = _normed(c, stage, row)
        for index in range(1, word(stage, STREAMS)):
            add(_stream(c, stage, row, index), added, c[t.DIM])
    return 0


@entry
def add_to_first(table, stage, thread):
    """This thread's rows, normed, added to the first stream, and what NORMED holds."""
    c = int64s_at(table, t.NUM_ENTRIES)
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        first = _stream(c, stage, row, np.int64(0))
        add(first, _normed(c, stage, row), c[t.DIM])
        normed = c[t.NORMED + t.FLOATS] + row * c[t.NORMED + t.FLOATS_STRIDE]
        add(first, normed, c[t.DIM])
    return 0


@entry
def take_others(table, stage, thread):
    """This thread's rows of the other streams, into GATED."""
    c = int64s_at(table, t.NUM_ENTRIES)
    width = (word(stage, STREAMS) - 1) * c[t.DIM]
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        place = c[t.GATED + t.FLOATS] + row * c[t.GATED + t.FLOATS_STRIDE]
        _copy(place, _stream(c, stage, row, np.int64(1)), width)
        quantise_row(c, np.int64(t.GATED), row, np.int64(0), width)
    return 0


@entry
def end(table, stage, thread):
    """This thread's rows of the first stream: its mean with those in UP, made as long as it."""
    c = int64s_at(table, t.NUM_ENTRIES)
    streams, dim = word(stage, STREAMS), c[t.DIM]
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        first = _stream(c, stage, row, np.int64(0))
        squares = _squares(first, dim)
        for index in range(1, streams):
            other = c[t.UP] + row * c[t.UP_STRIDE] + 4 * (index - 1) * dim
            _lengthen(other, dim, squares)
            add(first, other, dim)
        for i in range(dim):
            store_float(first + 4 * i, load_float(first + 4 * i) / np.float32(streams))
    return 0
