"""Attention to latent vectors, absorbed: queries are brought to the latent space before, and what
is mixed there is brought to values after, by matrices that every head has of its own (`heads.py`).

A row of KEY is the latent vector, then the key that all heads share; one of QUERY is the same of
each head; UP holds what is rotated of the queries.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.attention.grouped_query import first_query, put_query
from edgespec.backends.native.kernels.codegen.intrinsics import (
    bits_to_float,
    call_row,
    load_float,
    store_float,
)
from edgespec.backends.native.kernels.kv.places import node_entry, part_entry, store_kv
from edgespec.backends.native.kernels.stages.norm import ONE_BITS
from edgespec.backends.native.kernels.stages.project import grow, rotate
from edgespec.backends.native.kernels.stages.rows import quantise_row
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry, inner_kernel

# Of norms: where the entries of an input start, its width, and the gain.
NORMED_INPUT, NORMED_WIDTH, NORM_GAIN = range(t.ARGUMENTS, t.ARGUMENTS + 3)
# Of placing: the layer's place in the arena, and the gain of the norm of latent vectors.
LAYER, LATENT_GAIN = range(t.ARGUMENTS, t.ARGUMENTS + 2)


@entry
def norm_input(table, stage, thread):
    """This thread's rows of an input, normed in place and quantised."""
    c = int64s_at(table, t.NUM_ENTRIES)
    rows, width = word(stage, NORMED_INPUT), word(stage, NORMED_WIDTH)
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        place = c[rows + t.FLOATS] + row * c[rows + t.FLOATS_STRIDE]
        gain = word(stage, NORM_GAIN)
        call_row(c[t.OPS + t.NORM], (place, gain, place, width >> 4, c[t.EPSILON_BITS]))
        quantise_row(c, rows, row, np.int64(0), width)
    return 0


@inner_kernel
def _place_query(c, head, node):
    """One head's query, from QUERY and UP to ROTATED."""
    turned, latent = 2 * c[t.ROPE_HALF], c[t.VALUE_DIM]
    row = c[t.QUERY] + node * c[t.QUERY_STRIDE] + 4 * head * c[t.HEAD_DIM]
    source, target = c[t.UP] + node * c[t.UP_STRIDE] + 4 * head * turned, row + 4 * latent
    for i in range(turned):
        store_float(target + 4 * i, load_float(source + 4 * i))
    rotate(c, node, target, turned, c[t.QUERY_SCALE_BITS])
    factor = bits_to_float(np.int32(c[t.QUERY_SCALE_BITS]))
    for i in range(latent):
        store_float(row + 4 * i, load_float(row + 4 * i) * factor)
    grow(c, node, row)
    put_query(c, np.int64(0), first_query(c, node) + head, row)


@entry
def place(table, stage, thread):
    """This thread's rows of queries and of what is kept of positions."""
    c = int64s_at(table, t.NUM_ENTRIES)
    latent, gain = c[t.VALUE_DIM], word(stage, LATENT_GAIN)
    for node in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        key = c[t.KEY] + node * c[t.KEY_STRIDE]
        call_row(c[t.OPS + t.NORM], (key, gain, key, latent >> 4, c[t.EPSILON_BITS]))
        rotate(c, node, key + 4 * latent, 2 * c[t.ROPE_HALF], np.int64(ONE_BITS))
        blocks = part_entry(c, node_entry(c, node, t.PART), t.BLOCKS)
        slot = node_entry(c, node, t.SLOT)
        store_kv(c, blocks, word(stage, LAYER), np.int64(0), slot, key, key)
        for head in range(c[t.NUM_HEADS]):
            _place_query(c, head, node)
    return 0
