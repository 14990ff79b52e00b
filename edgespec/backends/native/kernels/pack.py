"""Repack weights from a file's own blocks into tiles, and read single rows back (embeddings).

No value changes: every quantised integer and every scale keeps its bits; only their places do (see
`tile.py`).
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels.intrinsics import bits_to_float, half_to_float
from edgespec.jit import kernel
from edgespec.models.spec import TensorType


@kernel
def _word(raw, row, place):
    """Four bytes as one little-endian integer; file blocks are not aligned."""
    return (
        np.uint32(raw[row, place])
        | np.uint32(raw[row, place + 1]) << np.uint32(8)
        | np.uint32(raw[row, place + 2]) << np.uint32(16)
        | np.uint32(raw[row, place + 3]) << np.uint32(24)
    )


@kernel
def pack_wide(raw, weights, scales, columns):
    """F32 tile: raw u8 [rows, 4 * columns] -> weights u32 [columns, 16]."""
    for row in range(raw.shape[0]):
        for column in range(columns):
            weights[column * 16 + row] = _word(raw, row, 4 * column)


@kernel
def pack_narrow(raw, weights, scales, columns):
    """F16 or BF16 tile: raw u8 [rows, 2 * columns] -> weights u16 [columns, 16], two columns a
    word.
    """
    halves = weights.view(np.uint16)
    for row in range(raw.shape[0]):
        for column in range(columns):
            low = np.uint16(raw[row, 2 * column])
            high = np.uint16(raw[row, 2 * column + 1])
            halves[column * 16 + row] = low | high << np.uint16(8)


@kernel
def pack_q8_0(raw, weights, scales, columns):
    halves = scales.view(np.uint16)
    flip = np.uint32(0x80808080)  # int8 to unsigned with an offset of 128
    for row in range(raw.shape[0]):
        for block in range(columns // 32):
            place = block * 34
            low, high = np.uint16(raw[row, place]), np.uint16(raw[row, place + 1])
            halves[block * 16 + row] = low | high << np.uint16(8)
            for quad in range(8):
                word = _word(raw, row, place + 2 + 4 * quad)
                weights[(block * 8 + quad) * 16 + row] = word ^ flip


@kernel
def pack_q4_0(raw, weights, scales, columns):
    halves = scales.view(np.uint16)
    for row in range(raw.shape[0]):
        for block in range(columns // 32):
            place = block * 18
            low, high = np.uint16(raw[row, place]), np.uint16(raw[row, place + 1])
            halves[block * 16 + row] = low | high << np.uint16(8)
            for quad in range(4):  # the file's nibbles already pair column c with c + 16
                weights[(block * 4 + quad) * 16 + row] = _word(raw, row, place + 2 + 4 * quad)


@kernel
def pack_q4_k(raw, weights, scales, columns):
    nibbles = np.uint32(0x0F0F0F0F)
    for row in range(raw.shape[0]):
        for block in range(columns // 256):
            place, base = block * 144, block * 320
            for half in range(2):  # d and dmin
                for byte in range(2):
                    value = raw[row, place + 2 * half + byte]
                    scales[base + 32 * half + 2 * row + byte] = value
            for sub in range(8):
                at = place + 4 + sub
                if sub < 4:
                    step, least = raw[row, at] & 63, raw[row, at + 4] & 63
                else:
                    step = raw[row, at + 4] & 15 | raw[row, at - 4] >> 6 << 4
                    least = raw[row, at + 4] >> 4 | raw[row, at] >> 6 << 4
                scales[base + 64 + sub * 16 + row] = step
                scales[base + 192 + sub * 16 + row] = least
                shift = np.uint32(4 * (sub & 1))
                source = place + 16 + 32 * (sub >> 1)
                for quad in range(4):
                    low = _word(raw, row, source + 4 * quad) >> shift & nibbles
                    high = _word(raw, row, source + 16 + 4 * quad) >> shift & nibbles
                    target = ((block * 8 + sub) * 4 + quad) * 16 + row
                    weights[target] = low | high << np.uint32(4)


@kernel
def pack_q6_k(raw, weights, scales, columns):
    nibbles, pairs = np.uint32(0x0F0F0F0F), np.uint32(0x03030303)
    for row in range(raw.shape[0]):
        for block in range(columns // 256):
            place, base = block * 210, block * 288
            for byte in range(2):
                scales[base + 2 * row + byte] = raw[row, place + 208 + byte]
            for sub in range(16):
                scales[base + 32 + sub * 16 + row] = raw[row, place + 192 + sub]
            for sub in range(8):
                part, inner = sub >> 2, sub & 3
                low_at = place + 64 * part + 32 * (inner & 1)
                high_at = place + 128 + 32 * part
                down, across = np.uint32(4 * (inner >> 1)), np.uint32(2 * inner)
                start = (block * 8 + sub) * 96
                for quad in range(4):
                    low = _word(raw, row, low_at + 4 * quad) >> down & nibbles
                    high = _word(raw, row, low_at + 16 + 4 * quad) >> down & nibbles
                    weights[start + quad * 16 + row] = low | high << np.uint32(4)
                for half in range(2):
                    bits = np.uint32(0)
                    for quad in range(4):
                        word = _word(raw, row, high_at + 16 * half + 4 * quad) >> across & pairs
                        bits |= word << np.uint32(2 * quad)
                    weights[start + 64 + half * 16 + row] = bits


@kernel
def unpack_f32(weights, scales, row, columns, out):
    values = weights.view(np.float32)
    for column in range(columns):
        out[column] = values[column * 16 + row]


@kernel
def unpack_f16(weights, scales, row, columns, out):
    halves = weights.view(np.uint16)
    for column in range(columns):
        out[column] = half_to_float(halves[column * 16 + row])


@kernel
def unpack_bf16(weights, scales, row, columns, out):
    halves = weights.view(np.uint16)
    for column in range(columns):
        out[column] = bits_to_float(np.int32(halves[column * 16 + row]) << 16)


@kernel
def unpack_q8_0(weights, scales, row, columns, out):
    quants, halves = weights.view(np.uint8), scales.view(np.uint16)
    for column in range(columns):
        block, quad = column >> 5, column >> 2
        value = np.int32(quants[quad * 64 + row * 4 + (column & 3)]) - 128
        out[column] = np.float32(value) * half_to_float(halves[block * 16 + row])


@kernel
def _nibble(quants, start, row, column):
    """The 4-bit weight of a column (0..31) in the block that starts at `start`."""
    quad = column >> 2
    byte = quants[start + (quad & 3) * 64 + row * 4 + (column & 3)]
    return np.int32(byte & 15) if quad < 4 else np.int32(byte >> 4)


@kernel
def unpack_q4_0(weights, scales, row, columns, out):
    quants, halves = weights.view(np.uint8), scales.view(np.uint16)
    for column in range(columns):
        block = column >> 5
        value = _nibble(quants, block * 256, row, column & 31) - 8
        out[column] = np.float32(value) * half_to_float(halves[block * 16 + row])


@kernel
def unpack_q4_k(weights, scales, row, columns, out):
    quants, halves = weights.view(np.uint8), scales.view(np.uint16)
    for column in range(columns):
        block, base, sub = column >> 5, column >> 8, column >> 5 & 7
        value = np.float32(_nibble(quants, block * 256, row, column & 31))
        step = half_to_float(halves[base * 160 + row])
        least = half_to_float(halves[base * 160 + 16 + row])
        step = step * np.float32(scales[base * 320 + 64 + sub * 16 + row])
        least = least * np.float32(scales[base * 320 + 192 + sub * 16 + row])
        out[column] = step * value - least


@kernel
def unpack_q6_k(weights, scales, row, columns, out):
    quants, halves, steps = weights.view(np.uint8), scales.view(np.uint16), scales.view(np.int8)
    for column in range(columns):
        block, base = column >> 5, column >> 8
        quad = column >> 2 & 7
        bits = quants[block * 384 + 256 + (quad >> 2) * 64 + row * 4 + (column & 3)]
        high = np.int32(bits >> (2 * (quad & 3))) & 3
        value = (_nibble(quants, block * 384, row, column & 31) | high << 4) - 32
        step = half_to_float(halves[base * 144 + row])
        factor = np.float32(steps[base * 288 + 32 + (column >> 4 & 15) * 16 + row])
        out[column] = step * factor * np.float32(value)


PACK = {
    TensorType.F32: pack_wide,
    TensorType.F16: pack_narrow,
    TensorType.BF16: pack_narrow,
    TensorType.Q8_0: pack_q8_0,
    TensorType.Q4_0: pack_q4_0,
    TensorType.Q4_K: pack_q4_k,
    TensorType.Q6_K: pack_q6_k,
}
"""(raw u8 [rows <= 16, row_bytes], weights u32 of one tile, scales u8 of one tile, columns)."""

UNPACK = {
    TensorType.F32: unpack_f32,
    TensorType.F16: unpack_f16,
    TensorType.BF16: unpack_bf16,
    TensorType.Q8_0: unpack_q8_0,
    TensorType.Q4_0: unpack_q4_0,
    TensorType.Q4_K: unpack_q4_k,
    TensorType.Q6_K: unpack_q6_k,
}
"""(weights u32 of one tile, scales u8 of one tile, row in the tile, columns, out f32 [columns])."""
