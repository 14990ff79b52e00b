"""A pass over one sequence's tree, and its commit, as entries that other kernels call by address.

What Python does around `forward.run` (embeddings, the nodes' description, tile functions for their
number) is done here from a table of words, so that a kernel can compute several passes on end. For
models with one shape of attention whose layers keep no states.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.attention.grouped_query import describe_part
from edgespec.backends.native.kernels.codegen.intrinsics import bits_to_float
from edgespec.backends.native.kernels.forward import run
from edgespec.backends.native.kernels.kv.places import move_kv
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.matmul.unpack import unpack_rows
from edgespec.system.addresses import (
    call,
    float32_rows,
    int16_line,
    int32_line,
    int32_rows,
    int64_line,
    int64_rows,
    word,
)
from edgespec.system.jit import entry, kernel

(BASE, TOKENS, PARENTS, PATH, SLOTS, BLOCKS, EXTRA) = range(0, 14, 2)
NODES, PARTS, STREAM, TILES = range(14, 26, 3)
(FIRST_STAGE, LAST_STAGE, HEAD_FIRST, HEAD_LAST, THREADS, NUM_LAYERS, SCALE_BITS, LAYOUT) = range(
    26, 34
)
EMBEDDING = LAYOUT + len(tile.Layout._fields)
NUM_WORDS = EMBEDDING + 4
"""Words: the base table; the tree's tokens and parents, its accepted path; slots in order, the
sequence's blocks, room for ancestors; nodes, parts, residual streams, what the base table's end
holds for each number of nodes; stages, threads, layers, what embeddings are multiplied by, the
layout of their matrix and where it is.
"""
MOST_TILES = tile.FLOAT_SIZES[-1] + 1
"""From so many nodes on, tile functions are the same."""


@entry
def forward(table: int, num_nodes: int, length: int) -> int:
    """Compute a pass over the first nodes of the tree on top of `length` committed positions."""
    c = int64_line(table, BASE)
    tokens, slots = int32_line(table, TOKENS)[:num_nodes], int32_line(table, SLOTS)[:num_nodes]
    first = table + 8 * EMBEDDING
    stream = float32_rows(table, STREAM)
    unpack_rows(
        (
            word(table, LAYOUT),
            word(table, LAYOUT + 1),
            word(table, LAYOUT + 2),
            word(table, LAYOUT + 3),
            word(table, LAYOUT + 4),
            word(table, LAYOUT + 5) != 0,
            word(table, LAYOUT + 6),
            word(table, LAYOUT + 7) != 0,
            word(table, LAYOUT + 8),
            word(table, LAYOUT + 9),
            np.float64(bits_to_float(np.int32(word(table, LAYOUT + 10)))),
            word(table, LAYOUT + 11),
        ),
        (word(first, 0), word(first, 1), word(first, 2), word(first, 3)),
        tokens,
        stream,
    )
    if word(table, SCALE_BITS) != 0:
        scale = bits_to_float(np.int32(word(table, SCALE_BITS)))
        for row in range(num_nodes):
            for column in range(stream.shape[1]):
                stream[row, column] *= scale
    describe_part(
        c,
        int16_line(table, PARENTS)[:num_nodes],
        slots,
        slots,
        0,
        length,
        int64_line(table, BLOCKS),
        int32_rows(table, NODES),
        int32_line(table, EXTRA),
        int64_rows(table, PARTS),
    )
    tiles = int64_rows(table, TILES)[min(num_nodes, MOST_TILES) - 1]
    for place in range(len(tiles)):
        c[t.TILES + place] = tiles[place]
    run(
        c,
        word(table, FIRST_STAGE),
        word(table, LAST_STAGE),
        word(table, HEAD_FIRST),
        word(table, HEAD_LAST),
        num_nodes,
        0,
        word(table, THREADS),
    )
    return 0


@kernel("int64", "int64", "int64", "int64")
def compute(address: int, table: int, num_nodes: int, length: int) -> None:
    """Call `forward`, by its address, from Python."""
    call(address, table, num_nodes, length)


@entry
def commit(table: int, num_path: int, length: int) -> int:
    """Keep the path's nodes of the last pass behind `length` committed positions."""
    c, path = int64_line(table, BASE), int32_line(table, PATH)
    for place in range(num_path):  # ascending, so a source is read before it is overwritten
        if path[place] != place:
            slots = length + path[place], length + place
            move_kv(c, word(table, BLOCKS), word(table, NUM_LAYERS), slots[0], slots[1])
    return 0
