"""Read packed weights one at a time: what a tile means, in words of its layout (see `tile.py`).

Embeddings are read this way, and the plain loops are made of it.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels.codegen.intrinsics import (
    bits_to_float,
    half_to_float,
    load_byte,
    load_float,
    load_short,
)
from edgespec.backends.native.kernels.matmul import tile
from edgespec.models.gguf import codebooks
from edgespec.system.jit import inlined_kernel, inner_kernel, kernel

_ROWS = tile.TILE_ROWS
_CODEBOOKS = np.array(codebooks.CODEBOOKS)


@inlined_kernel
def float_at(layout, weights, row, column):
    """A float weight of one row of a tile, as f32."""
    place = weights + (column * _ROWS + row) * (layout.bits >> 3)
    if layout.bits == 32:
        return np.float32(load_float(place))
    if layout.upper_half:
        return bits_to_float(np.int32(np.int64(load_short(place)) << 16))
    return half_to_float(load_short(place))


@inlined_kernel
def weight_at(layout, weights, block, row, column):
    """The integer of a quantised weight; the column is that in the block, 0 to 31."""
    quad = column >> 2
    place = weights + block * (64 * layout.bits) + 4 * row + (column & 3)
    if layout.bits == 8:
        return load_byte(place + 64 * quad) - layout.offset
    if layout.bits >= 4:
        weight = load_byte(place + 64 * (quad & 3)) >> (quad & 4) & 15
    else:
        weight = load_byte(place + 64 * (quad >> 2)) >> 2 * (quad & 3) & 3
    if layout.bits == 3:
        weight |= (load_byte(place + 128) >> quad & 1) << 2
    elif layout.bits == 5:
        weight |= (load_byte(place + 256) >> quad & 1) << 4
    elif layout.bits == 6:
        weight |= (load_byte(place + 256 + 64 * (quad >> 2)) >> 2 * (quad & 3) & 3) << 4
    if layout.codebook:
        return _CODEBOOKS[layout.codebook, weight]
    return (weight << layout.raised) - layout.offset


@inlined_kernel
def scale_at(layout, scales, block, part, row):
    """What the integers of a part of a block are multiplied by, f32."""
    place = scales + block // layout.blocks * layout.scale_bytes
    index = (block % layout.blocks * layout.parts + part) * _ROWS + row
    if layout.step != tile.HALF:
        return _small_float(layout, load_byte(place + index))
    step = half_to_float(load_short(place + 2 * row)) * np.float32(layout.unit)
    if layout.factors == 0:
        return step
    factor = load_byte(place + (64 if layout.minimum else 32) + index)
    if layout.factors == 4:
        factor &= 15
    return step * np.float32(factor if layout.minimum else (factor ^ 128) - 128)


@inlined_kernel
def _small_float(layout, byte):
    """The f32 that a scale of 8 bits stands for."""
    if layout.step == tile.E8M0:
        return bits_to_float(np.int32((byte - 1) << 23 if byte > 1 else 0x00200000 << byte))
    if byte == 127:  # not a number, which ggml takes for zero
        return np.float32(0.0)
    return half_to_float(np.uint16((byte & 127) << 7)) * np.float32(128.0)


@inlined_kernel
def minimum_at(layout, scales, block, part, row):
    """What is taken off each weight of a part of a block, f32; only for types that have minima."""
    place = scales + block // layout.blocks * layout.scale_bytes
    step = half_to_float(load_short(place + 2 * _ROWS + 2 * row))
    if layout.factors == 0:
        return step
    inside = block % layout.blocks
    if layout.factors == 4:
        byte = load_byte(place + 64 + (inside * layout.parts + part) * _ROWS + row)
        return step * np.float32(byte >> 4)
    return step * np.float32(load_byte(place + 64 + (layout.blocks + inside) * _ROWS + row))


@kernel(
    (
        "int64",
        "int64",
        "int64",
        "int64",
        "int64",
        "bool",
        "int64",
        "bool",
        "int64",
        "int64",
        "float64",
        "int64",
    ),
    ("int64", "int64", "int64", "int64"),
    "int32[:]",
    "float32[:,:]",
)
def unpack_rows(fields, places, rows, out):
    """Write these rows of a matrix as f32 [rows, columns]. `fields` are its `Layout` as a plain
    tuple, which a call takes half a microsecond less for; `places` are the addresses of its weights
    and scales, and bytes of both in a tile.
    """
    layout = tile.Layout(*fields)
    weights, scales, weight_bytes, scale_bytes = places
    for place in range(len(rows)):
        row = np.int64(rows[place])
        index, lane = row // _ROWS, row % _ROWS
        tile_weights, tile_scales = weights + index * weight_bytes, scales + index * scale_bytes
        _unpack_row(layout, tile_weights, tile_scales, lane, out[place])


@inner_kernel
def _unpack_row(layout, weights, scales, row, out):
    """Write one row of the tile at two addresses as f32 [columns]."""
    columns = len(out)
    if layout.scale_bytes == 0:
        for column in range(columns):
            out[column] = float_at(layout, weights, row, column)
        return
    width = tile.BLOCK // layout.parts
    for block in range(columns // tile.BLOCK):
        for part in range(layout.parts):
            scale, minimum = scale_at(layout, scales, block, part, row), np.float32(0.0)
            if layout.minimum:
                minimum = minimum_at(layout, scales, block, part, row)
            for column in range(part * width, part * width + width):
                weight = weight_at(layout, weights, block, row, column)
                out[block * tile.BLOCK + column] = np.float32(weight) * scale - minimum
