"""What several stages do with rows of activations: norm, quantise, multiply by tiles of weights.

Rows are padded to the tile sizes, and what stands in padding rows is never read as a result.
Constants are passed as `np.int64(...)`, because Numba compiles a function anew for every literal it
is called with.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import (
    call_row,
    call_tile,
    load_float,
    load_long,
    store_float,
)
from edgespec.system.jit import inner_kernel

UNIT = 4
"""Tiles of a unit of work: 64 outputs, whole blocks of what quantises them."""


@inner_kernel
def quantise_row(c, rows, row, first, width):
    """Fill columns `first` .. `first + width` of a row as int8, when some matrix may read it."""
    if c[rows + t.HAS_QUANTS] != 0:
        call_row(
            c[t.OPS + t.QUANTISE],
            (
                c[rows + t.FLOATS] + row * c[rows + t.FLOATS_STRIDE] + 4 * first,
                c[rows + t.QUANTS] + row * c[rows + t.QUANTS_STRIDE] + first,
                c[rows + t.PLANES] + row * c[rows + t.PLANES_STRIDE] + (first >> 5) * 4,
                c[rows + t.PLANE_BYTES_EACH],
                width >> 5,
            ),
        )


@inner_kernel
def multiply_tiles(c, matrix, rows, num_rows, first, last, output, output_stride, accumulate):
    """Outputs of tiles `first` .. `last` of a matrix, 16 each, for all rows."""
    whole = (output, output_stride, accumulate)
    multiply_columns(c, matrix, rows, np.int64(0), num_rows, first, last, whole)


@inner_kernel
def multiply_columns(c, matrix, rows, column, num_rows, first, last, into):
    """The same of the rows' columns from `column` on, whole blocks; `into` is where the outputs of
    tile 0 go, bytes from a row to the next, and 1 to add to what is there.
    """
    output, output_stride, accumulate = into
    kind = load_long(matrix + 8 * t.TYPE)
    tile, size, steps = c[t.TILES + kind], c[t.SIZES + kind], load_long(matrix + 8 * t.STEPS)
    tile_bytes = load_long(matrix + 8 * t.TILE_BYTES)
    scale_bytes = load_long(matrix + 8 * t.SCALE_BYTES)
    if load_long(matrix + 8 * t.IS_FLOAT) != 0:
        data, stride = c[rows + t.FLOATS] + 4 * column, c[rows + t.FLOATS_STRIDE]
    else:
        data, stride = c[rows + t.QUANTS] + column, c[rows + t.QUANTS_STRIDE]
    planes, planes_stride = c[rows + t.PLANES] + (column >> 5) * 4, c[rows + t.PLANES_STRIDE]
    for index in range(first, min(last, load_long(matrix + 8 * t.NUM_TILES))):
        weights = load_long(matrix + 8 * t.WEIGHTS) + index * tile_bytes
        scales = load_long(matrix + 8 * t.SCALES) + index * scale_bytes
        for row in range(0, num_rows, size):
            call_tile(
                tile,
                (
                    weights,
                    scales,
                    data + row * stride,
                    planes + row * planes_stride,
                    output + row * output_stride + index * 64,
                    steps,
                    stride,
                    planes_stride,
                    c[rows + t.PLANE_BYTES_EACH],
                    output_stride,
                    min(size, num_rows - row),
                    accumulate,
                ),
            )


@inner_kernel
def unit_bytes(matrix):
    """Bytes of weights that a unit of a matrix goes through."""
    tile = load_long(matrix + 8 * t.TILE_BYTES) + load_long(matrix + 8 * t.SCALE_BYTES)
    return UNIT * tile


@inner_kernel
def add(target, source, count):
    """target[count] += source[count], f32 at two addresses."""
    for i in range(count):
        store_float(target + 4 * i, load_float(target + 4 * i) + load_float(source + 4 * i))


@inner_kernel
def add_bias(matrix, bias, num_rows, first, last, output, output_stride):
    """Add a bias, f32 padded to whole tiles, to tiles `first` .. `last` of a product; 0 is none."""
    if bias == 0:
        return
    last = min(last, load_long(matrix + 8 * t.NUM_TILES))
    for row in range(num_rows):
        place = output + row * output_stride + 64 * first
        add(place, bias + 64 * first, 16 * (last - first))
