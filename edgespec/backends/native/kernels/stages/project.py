"""Queries, keys and values: whole heads, rotated by the thread that computed them, put in place."""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.attention.grouped_query import first_query, put_query
from edgespec.backends.native.kernels.codegen.intrinsics import (
    bits_to_float,
    call_row,
    load_double,
    load_float,
    store_float,
)
from edgespec.backends.native.kernels.kv.places import node_entry, part_entry, store_kv
from edgespec.backends.native.kernels.stages.norm import ONE_BITS
from edgespec.backends.native.kernels.stages.rows import (
    UNIT,
    add_bias,
    multiply_tiles,
    unit_bytes,
)
from edgespec.backends.native.kernels.work_sharing import first_unit, next_unit
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry, inner_kernel

# The layer's place in the arena; matrices: a key of 0 is another layer's, a value of 0 is the key,
# a gate of 0 is none; their biases or 0; and the gains of norms of heads, or 0 (ones for a norm
# without gain).
(LAYER, QUERY, KEY, VALUE, GATE, QUERY_BIAS, KEY_BIAS, VALUE_BIAS, GATE_BIAS, QUERY_NORM, KEY_NORM,
 VALUE_NORM) = range(t.ARGUMENTS, t.ARGUMENTS + 12)  # fmt: skip


@inner_kernel
def _rotate_pairs(c, row, cosines, sines):
    """RoPE in place on the leading dimensions of one head, for widths that fill no vectors."""
    half = c[t.ROPE_HALF]
    for i in range(half):
        if c[t.INTERLEAVED] != 0:
            first, second = row + 8 * i, row + 8 * i + 4
        else:
            first, second = row + 4 * i, row + 4 * (i + half)
        real, imaginary = load_float(first), load_float(second)
        cosine, sine = load_float(cosines + 4 * i), load_float(sines + 4 * i)
        store_float(first, real * cosine - imaginary * sine)
        store_float(second, real * sine + imaginary * cosine)


@inner_kernel
def rotate(c, node, row, width, factor_bits):
    """RoPE of a row's leading dimensions in place, and its multiplication by a factor."""
    cosines, sines = c[t.COSINES] + node * c[t.ANGLE_STRIDE], c[t.SINES] + node * c[t.ANGLE_STRIDE]
    half, after = c[t.ROPE_HALF], width - 2 * c[t.ROPE_HALF]
    if (half | after) & 15 == 0:
        operation = c[t.OPS + t.ROTATE]
        call_row(operation, (row, cosines, sines, row, half >> 4, after >> 4, factor_bits))
        return
    _rotate_pairs(c, row, cosines, sines)
    factor = bits_to_float(np.int32(factor_bits))
    for i in range(width):
        store_float(row + 4 * i, load_float(row + 4 * i) * factor)


@inner_kernel
def _norm_head(c, row, gain):
    if gain != 0:
        call_row(c[t.OPS + t.NORM], (row, gain, row, c[t.HEAD_DIM] >> 4, c[t.EPSILON_BITS]))


@inner_kernel
def _turn(c, node, row, gain, factor_bits):
    """Norm and rotate one head in place, in the order that the model does; then times a factor."""
    if c[t.NORM_AFTER_ROPE] == 0:
        _norm_head(c, row, gain)
        rotate(c, node, row, c[t.HEAD_DIM], factor_bits)
        return
    rotate(c, node, row, c[t.HEAD_DIM], np.int64(ONE_BITS))
    _norm_head(c, row, gain)  # which would undo a factor
    factor = bits_to_float(np.int32(factor_bits))
    for i in range(c[t.HEAD_DIM]):
        store_float(row + 4 * i, load_float(row + 4 * i) * factor)


@inner_kernel
def grow(c, node, row):
    """Multiply a query by what grows with its position."""
    span = c[t.GROWTH_SPAN]
    if span == 0:
        return
    position = np.float64(node_entry(c, node, t.POSITION))
    slope, offset = load_double(c[t.GROWTH_SLOPE]), load_double(c[t.GROWTH_OFFSET])
    grown = np.float32(1.0 + slope * np.log(np.floor((position + offset) / span) + 1.0))
    for i in range(c[t.HEAD_DIM]):
        store_float(row + 4 * i, load_float(row + 4 * i) * grown)


@inner_kernel
def _place_query(c, gain, head, node):
    """One head's query, from QUERY to ROTATED; the gain is that of its norm, or 0."""
    group = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    row = c[t.QUERY] + node * c[t.QUERY_STRIDE] + 4 * head * c[t.HEAD_DIM]
    _turn(c, node, row, gain, c[t.QUERY_SCALE_BITS])
    grow(c, node, row)
    put_query(c, head // group, first_query(c, node) + head % group, row)


@inner_kernel
def _place_key(c, stage, gain, head, node):
    """One head's key and value, from KEY and VALUE to the arena; the gain is of the key's norm,
    or 0.
    """
    dim = c[t.HEAD_DIM]
    key = c[t.KEY] + node * c[t.KEY_STRIDE] + 4 * head * dim
    value = c[t.VALUE] + node * c[t.VALUE_STRIDE] + 4 * head * dim
    if word(stage, VALUE) == 0:
        for i in range(dim):
            store_float(value + 4 * i, load_float(key + 4 * i))
    _norm_head(c, value, word(stage, VALUE_NORM))
    _turn(c, node, key, gain, np.int64(ONE_BITS))
    blocks = part_entry(c, node_entry(c, node, t.PART), t.BLOCKS)
    store_kv(c, blocks, word(stage, LAYER), head, node_entry(c, node, t.SLOT), key, value)


@inner_kernel
def _multiply(c, matrix, bias, first, last, output, stride):
    """Tiles of a product with NORMED, and their bias."""
    num_rows = c[t.NUM_ROWS]
    multiply_tiles(c, matrix, np.int64(t.NORMED), num_rows, first, last, output, stride, 0)
    add_bias(matrix, bias, num_rows, first, last, output, stride)


@inner_kernel
def _queries(c, stage, unit, heads, tiles):
    """A unit of queries."""
    first, last = unit * tiles, unit * tiles + tiles
    bias = word(stage, QUERY_BIAS)
    _multiply(c, word(stage, QUERY), bias, first, last, c[t.QUERY], c[t.QUERY_STRIDE])
    for head in range(unit * heads, min(unit * heads + heads, c[t.NUM_HEADS])):
        for node in range(c[t.NUM_ROWS]):
            _place_query(c, word(stage, QUERY_NORM), head, node)


@inner_kernel
def _keys(c, stage, unit, heads, tiles):
    """A unit of keys and values."""
    first, last = unit * tiles, unit * tiles + tiles
    bias = word(stage, KEY_BIAS)
    _multiply(c, word(stage, KEY), bias, first, last, c[t.KEY], c[t.KEY_STRIDE])
    if word(stage, VALUE) != 0:
        bias = word(stage, VALUE_BIAS)
        _multiply(c, word(stage, VALUE), bias, first, last, c[t.VALUE], c[t.VALUE_STRIDE])
    for head in range(unit * heads, min(unit * heads + heads, c[t.NUM_KV_HEADS])):
        for node in range(c[t.NUM_ROWS]):
            _place_key(c, stage, word(stage, KEY_NORM), head, node)


@entry
def place(table, stage, thread):
    """This thread's rows of queries and keys that were projected before, because all heads of one
    are normed together.
    """
    c = int64s_at(table, t.NUM_ENTRIES)
    none = np.int64(0)
    for node in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        row, gain = c[t.QUERY] + node * c[t.QUERY_STRIDE], word(stage, QUERY_NORM)
        width = c[t.NUM_HEADS] * c[t.HEAD_DIM] >> 4
        call_row(c[t.OPS + t.NORM], (row, gain, row, width, c[t.EPSILON_BITS]))
        row, gain = c[t.KEY] + node * c[t.KEY_STRIDE], word(stage, KEY_NORM)
        width = c[t.NUM_KV_HEADS] * c[t.HEAD_DIM] >> 4
        call_row(c[t.OPS + t.NORM], (row, gain, row, width, c[t.EPSILON_BITS]))
        for head in range(c[t.NUM_HEADS]):
            _place_query(c, none, head, node)
        for head in range(c[t.NUM_KV_HEADS]):
            _place_key(c, stage, none, head, node)
    return 0


@entry
def project(table, stage, thread):
    """This thread's share of queries, keys, values, and gates of what is mixed."""
    c = int64s_at(table, t.NUM_ENTRIES)
    heads, tiles = c[t.UNIT_HEADS], c[t.UNIT_HEADS] * c[t.HEAD_DIM] + 15 >> 4
    num_queries = (c[t.NUM_HEADS] + heads - 1) // heads
    num_keys = (c[t.NUM_KV_HEADS] + heads - 1) // heads if word(stage, KEY) != 0 else 0
    count = num_queries + num_keys
    if word(stage, GATE) != 0:
        count += num_queries
    num_bytes = unit_bytes(word(stage, QUERY)) * tiles // UNIT
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        if unit < num_queries:
            _queries(c, stage, unit, heads, tiles)
        elif unit < num_queries + num_keys:
            _keys(c, stage, unit - num_queries, heads, tiles)
        else:
            first = (unit - num_queries - num_keys) * tiles
            matrix, bias = word(stage, GATE), word(stage, GATE_BIAS)
            _multiply(c, matrix, bias, first, first + tiles, c[t.GATES], c[t.GATES_STRIDE])
        unit = next_unit(c, thread, unit, count, num_bytes)
    return 0
