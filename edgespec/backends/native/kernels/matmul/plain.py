"""The plain tile loop: what every machine can run and what all instruction sets are tested against.

Same signature, same layout and same order of float operations as the vector tiles (see `tile.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from edgespec.backends.native.kernels.codegen.intrinsics import (
    fma,
    load_byte,
    load_float,
    load_int,
    store_float,
)
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.matmul.unpack import float_at, minimum_at, scale_at, weight_at
from edgespec.models.spec import TensorType
from edgespec.system.addresses import address_named
from edgespec.system.entries import ENTRIES, Entry
from edgespec.system.jit import inlined_kernel

_ROWS, _BLOCK = tile.TILE_ROWS, tile.BLOCK
_THIRTY_SECOND = np.float32(1 / 32)


@inlined_kernel
def _store(place, value, accumulate):
    store_float(place, load_float(place) + value if accumulate else value)


def plain_tile(kind: TensorType) -> Callable[..., None]:
    """The tile function of a type, uncompiled."""
    layout = tile.FORMATS[kind].layout
    width, own_minima = _BLOCK // layout.parts, layout.minimum and layout.parts > 1

    # fmt: off
    def integer_tile(weights, scales, quants, planes, output, num_blocks, quants_stride, row_stride,
                     plane_stride, output_stride, num_tokens, accumulate):
        # fmt: on
        for token in range(num_tokens):
            quant, meta = quants + token * quants_stride, planes + token * row_stride
            for row in range(_ROWS):
                total = np.float32(0.0)
                for block in range(num_blocks):
                    factor = weigh = load_float(meta + 4 * block)
                    before = total
                    if own_minima:  # the block is added up first, then multiplied by the factor
                        total, weigh = np.float32(0.0), np.float32(1.0)
                    for part in range(layout.parts):
                        acc = 0
                        for column in range(part * width, part * width + width):
                            value = (load_byte(quant + block * _BLOCK + column) ^ 128) - 128
                            acc += weight_at(layout, weights, block, row, column) * value
                        scale = scale_at(layout, scales, block, part, row) * weigh
                        total = fma(np.float32(acc), scale, total)
                    if layout.minimum and not own_minima:
                        block_sum = load_float(meta + tile.SUM * plane_stride + 4 * block)
                        total = fma(-minimum_at(layout, scales, block, 0, row), block_sum, total)
                    if own_minima:
                        for part in range(layout.parts):
                            place = meta + (tile.START_32_LOW + part) * plane_stride + 4 * block
                            minimum = minimum_at(layout, scales, block, part, row)
                            half_sum = np.float32(load_int(place))
                            total = fma(minimum * _THIRTY_SECOND, half_sum, total)
                        total = fma(total, factor, before)
                _store(output + token * output_stride + 4 * row, total, accumulate)

    # fmt: off
    def float_tile(weights, scales, values, planes, output, num_pairs, values_stride, row_stride,
                   plane_stride, output_stride, num_tokens, accumulate):
        # fmt: on
        for token in range(num_tokens):
            for row in range(_ROWS):
                even, odd = np.float32(0.0), np.float32(0.0)
                for pair in range(num_pairs):
                    place = values + token * values_stride + 8 * pair
                    even = fma(float_at(layout, weights, row, 2 * pair), load_float(place), even)
                    place += 4
                    odd = fma(float_at(layout, weights, row, 2 * pair + 1), load_float(place), odd)
                _store(output + token * output_stride + 4 * row, even + odd, accumulate)

    return float_tile if tile.FORMATS[kind].is_float else integer_tile


_NAME = "backends.native.kernels.matmul.plain.tile_"
for _kind in tile.FORMATS:
    _name = _NAME + _kind.name
    ENTRIES[_name] = Entry(_name, partial(plain_tile, _kind), None, tile.NUM_ARGUMENTS, False)


def address(kind: TensorType) -> int:
    """Where the plain tile function of a type is."""
    return address_named(_NAME + kind.name)
