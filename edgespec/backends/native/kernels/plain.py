"""The plain tile loops: what every machine can run and what all instruction sets are tested
against.

Same signature, same layout and same order of float operations as the vector tiles (see `tile.py`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cfunc, types

from edgespec.backends.native.kernels import tile
from edgespec.backends.native.kernels.intrinsics import (
    bits_to_float,
    bytes_at,
    floats_at,
    fma,
    half_to_float,
    ints_at,
    shorts_at,
)
from edgespec.jit import CACHING, kernel
from edgespec.models.spec import TensorType

_ROWS = tile.TILE_ROWS


@kernel
def _store(output, stride, token, row, value, accumulate):
    place = floats_at(output + token * stride, _ROWS)
    place[row] = place[row] + value if accumulate else value


@kernel
def _nibble(packed, block_start, row, column):
    quad = column >> 2
    byte = packed[block_start + (quad & 3) * 64 + row * 4 + (column & 3)]
    return np.int32(byte & 15) if quad < 4 else np.int32(byte >> 4)


@kernel
def plain_q8_0(
    weights,
    scales,
    activations,
    planes,
    output,
    num_blocks,
    activation_stride,
    row_stride,
    plane_stride,
    output_stride,
    num_tokens,
    accumulate,
):
    packed = bytes_at(weights, num_blocks * 512)
    steps = shorts_at(scales, num_blocks * _ROWS)
    for token in range(num_tokens):
        values = bytes_at(activations + token * activation_stride, num_blocks * 32).view(np.int8)
        factor = floats_at(planes + token * row_stride, num_blocks)
        start = ints_at(planes + token * row_stride + tile.START_128 * plane_stride, num_blocks)
        for row in range(_ROWS):
            total = np.float32(0.0)
            for block in range(num_blocks):
                acc = start[block]
                for column in range(32):
                    weight = packed[block * 512 + (column >> 2) * 64 + row * 4 + (column & 3)]
                    acc += np.int32(weight) * np.int32(values[block * 32 + column])
                scale = half_to_float(steps[block * _ROWS + row]) * factor[block]
                total = fma(np.float32(acc), scale, total)
            _store(output, output_stride, token, row, total, accumulate)


@kernel
def plain_q4_0(
    weights,
    scales,
    activations,
    planes,
    output,
    num_blocks,
    activation_stride,
    row_stride,
    plane_stride,
    output_stride,
    num_tokens,
    accumulate,
):
    packed = bytes_at(weights, num_blocks * 256)
    steps = shorts_at(scales, num_blocks * _ROWS)
    for token in range(num_tokens):
        values = bytes_at(activations + token * activation_stride, num_blocks * 32).view(np.int8)
        factor = floats_at(planes + token * row_stride, num_blocks)
        start = ints_at(planes + token * row_stride + tile.START_8 * plane_stride, num_blocks)
        for row in range(_ROWS):
            total = np.float32(0.0)
            for block in range(num_blocks):
                acc = start[block]
                for column in range(32):
                    weight = _nibble(packed, block * 256, row, column)
                    acc += weight * np.int32(values[block * 32 + column])
                scale = half_to_float(steps[block * _ROWS + row]) * factor[block]
                total = fma(np.float32(acc), scale, total)
            _store(output, output_stride, token, row, total, accumulate)


@kernel
def plain_q4_k(
    weights,
    scales,
    activations,
    planes,
    output,
    num_blocks,
    activation_stride,
    row_stride,
    plane_stride,
    output_stride,
    num_tokens,
    accumulate,
):
    packed = bytes_at(weights, num_blocks * 256)
    halves = shorts_at(scales, num_blocks // 8 * 160)
    steps = bytes_at(scales, num_blocks // 8 * 320)
    for token in range(num_tokens):
        values = bytes_at(activations + token * activation_stride, num_blocks * 32).view(np.int8)
        factor = floats_at(planes + token * row_stride, num_blocks)
        block_sum = floats_at(planes + token * row_stride + tile.SUM * plane_stride, num_blocks)
        for row in range(_ROWS):
            total = np.float32(0.0)
            for block in range(num_blocks):
                acc = np.int32(0)
                for column in range(32):
                    weight = _nibble(packed, block * 256, row, column)
                    acc += weight * np.int32(values[block * 32 + column])
                base, sub = block >> 3, block & 7
                step = np.float32(steps[base * 320 + 64 + sub * 16 + row])
                least = np.float32(steps[base * 320 + 192 + sub * 16 + row])
                scale = half_to_float(halves[base * 160 + row]) * step * factor[block]
                total = fma(np.float32(acc), scale, total)
                minimum = half_to_float(halves[base * 160 + 16 + row]) * least
                total = fma(-minimum, block_sum[block], total)
            _store(output, output_stride, token, row, total, accumulate)


@kernel
def plain_q6_k(
    weights,
    scales,
    activations,
    planes,
    output,
    num_blocks,
    activation_stride,
    row_stride,
    plane_stride,
    output_stride,
    num_tokens,
    accumulate,
):
    packed = bytes_at(weights, num_blocks * 384)
    halves = shorts_at(scales, num_blocks // 8 * 144)
    steps = bytes_at(scales, num_blocks // 8 * 288).view(np.int8)
    for token in range(num_tokens):
        values = bytes_at(activations + token * activation_stride, num_blocks * 32).view(np.int8)
        meta = planes + token * row_stride
        factor = floats_at(meta, num_blocks)
        low = ints_at(meta + tile.START_32_LOW * plane_stride, num_blocks)
        high = ints_at(meta + tile.START_32_HIGH * plane_stride, num_blocks)
        for row in range(_ROWS):
            total = np.float32(0.0)
            for block in range(num_blocks):
                base, sub = block >> 3, block & 7
                step = half_to_float(halves[base * 144 + row])
                for half in range(2):
                    acc = low[block] if half == 0 else high[block]
                    for column in range(half * 16, half * 16 + 16):
                        weight = _nibble(packed, block * 384, row, column)
                        quad = column >> 2
                        place = block * 384 + 256 + (quad >> 2) * 64 + row * 4 + (column & 3)
                        pair = np.int32(packed[place] >> (2 * (quad & 3))) & 3
                        weight |= pair << 4
                        acc += weight * np.int32(values[block * 32 + column])
                    factor_byte = np.float32(steps[base * 288 + 32 + sub * 32 + half * 16 + row])
                    total = fma(np.float32(acc), step * factor_byte * factor[block], total)
            _store(output, output_stride, token, row, total, accumulate)


@kernel
def plain_f32(
    weights,
    scales,
    activations,
    planes,
    output,
    num_pairs,
    activation_stride,
    row_stride,
    plane_stride,
    output_stride,
    num_tokens,
    accumulate,
):
    packed = floats_at(weights, num_pairs * 2 * _ROWS)
    for token in range(num_tokens):
        values = floats_at(activations + token * activation_stride, num_pairs * 2)
        for row in range(_ROWS):
            even, odd = np.float32(0.0), np.float32(0.0)
            for pair in range(num_pairs):
                even = fma(packed[2 * pair * _ROWS + row], values[2 * pair], even)
                odd = fma(packed[(2 * pair + 1) * _ROWS + row], values[2 * pair + 1], odd)
            _store(output, output_stride, token, row, even + odd, accumulate)


@kernel
def plain_f16(
    weights,
    scales,
    activations,
    planes,
    output,
    num_pairs,
    activation_stride,
    row_stride,
    plane_stride,
    output_stride,
    num_tokens,
    accumulate,
):
    packed = shorts_at(weights, num_pairs * 2 * _ROWS)
    for token in range(num_tokens):
        values = floats_at(activations + token * activation_stride, num_pairs * 2)
        for row in range(_ROWS):
            even, odd = np.float32(0.0), np.float32(0.0)
            for pair in range(num_pairs):
                first = half_to_float(packed[2 * pair * _ROWS + row])
                second = half_to_float(packed[(2 * pair + 1) * _ROWS + row])
                even = fma(first, values[2 * pair], even)
                odd = fma(second, values[2 * pair + 1], odd)
            _store(output, output_stride, token, row, even + odd, accumulate)


@kernel
def plain_bf16(
    weights,
    scales,
    activations,
    planes,
    output,
    num_pairs,
    activation_stride,
    row_stride,
    plane_stride,
    output_stride,
    num_tokens,
    accumulate,
):
    packed = shorts_at(weights, num_pairs * 2 * _ROWS)
    for token in range(num_tokens):
        values = floats_at(activations + token * activation_stride, num_pairs * 2)
        for row in range(_ROWS):
            even, odd = np.float32(0.0), np.float32(0.0)
            for pair in range(num_pairs):
                first = bits_to_float(np.int32(packed[2 * pair * _ROWS + row]) << 16)
                second = bits_to_float(np.int32(packed[(2 * pair + 1) * _ROWS + row]) << 16)
                even = fma(first, values[2 * pair], even)
                odd = fma(second, values[2 * pair + 1], odd)
            _store(output, output_stride, token, row, even + odd, accumulate)


PLAIN_TILES = {
    TensorType.Q8_0: plain_q8_0,
    TensorType.Q4_0: plain_q4_0,
    TensorType.Q4_K: plain_q4_k,
    TensorType.Q6_K: plain_q6_k,
    TensorType.F32: plain_f32,
    TensorType.F16: plain_f16,
    TensorType.BF16: plain_bf16,
}
_SIGNATURE = types.void(*[types.intp] * tile.NUM_ARGUMENTS)
_KEPT: list[Any] = []


@cache
def address(kind: TensorType) -> int:
    """Where the plain tile function of a type is."""
    function = cfunc(_SIGNATURE, cache=CACHING, error_model="numpy")(PLAIN_TILES[kind].py_func)  # type: ignore[attr-defined]
    _KEPT.append(function)  # Numba frees the code with the object
    place: int = function.address
    return place
