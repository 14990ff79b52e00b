"""Block layouts turned into float32, in plain NumPy: the oracle that kernels are tested against.

Each function takes blocks `[n, block_bytes]` u8 and returns `[n, block_size]` f32, rounding exactly
as the reference `dequantize_row_*` of ggml-quants.c does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import UnsupportedModelError
from edgespec.models.gguf import dequantise_grids as grids
from edgespec.models.gguf.codebooks import FP4_VALUES
from edgespec.models.spec import IQ4_NL_VALUES, TensorType

Blocks = NDArray[np.uint8]
Values = NDArray[np.float32]


def dequantise(raw: Blocks, type: TensorType) -> Values:
    """Turn `[rows, row_bytes]` u8 into `[rows, columns]` f32; raises UnsupportedModelError."""
    if type not in _TABLE:
        raise UnsupportedModelError(
            f"cannot dequantise {type.name}; supported are {', '.join(t.name for t in _TABLE)}"
        )
    num_blocks = raw.shape[1] // type.block_bytes
    blocks = np.ascontiguousarray(raw).reshape(-1, type.block_bytes)
    return _TABLE[type](blocks).reshape(raw.shape[0], num_blocks * type.block_size)


def _f32(blocks: Blocks) -> Values:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Blocks) -> Values:
    return _half(blocks)


def _bf16(blocks: Blocks) -> Values:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: Blocks) -> Values:
    return _half(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Blocks) -> Values:
    quants = _nibbles(blocks[:, 2:])
    return _half(blocks[:, :2]) * (quants.astype(np.int8) - np.int8(8)).astype(np.float32)


def _q4_1(blocks: Blocks) -> Values:
    quants = _nibbles(blocks[:, 4:]).astype(np.float32)
    return _half(blocks[:, :2]) * quants + _half(blocks[:, 2:4])


def _q5_0(blocks: Blocks) -> Values:
    quants = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _half(blocks[:, :2]) * (quants.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Blocks) -> Values:
    quants = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return _half(blocks[:, :2]) * quants.astype(np.float32) + _half(blocks[:, 2:4])


def _iq4_nl(blocks: Blocks) -> Values:
    values = np.array(IQ4_NL_VALUES, np.float32)[_nibbles(blocks[:, 2:])]
    return _half(blocks[:, :2]) * values


def _iq4_xs(blocks: Blocks) -> Values:
    """Eight blocks of IQ4_NL with scales of 6 bits less 32."""
    low = (blocks[:, 4:8, None] >> _shifts(2, 4) & 15).reshape(-1, 8)
    high = (blocks[:, 2:4, None] >> _shifts(4, 2) & 3).reshape(-1, 8)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    scale = _half(blocks[:, :2]) * scales.astype(np.float32)
    places = _nibbles(blocks[:, 8:].reshape(-1, 16)).reshape(-1, 8, 32)
    values: Values = scale[..., None] * np.array(IQ4_NL_VALUES, np.float32)[places]
    return values.reshape(-1, 256)


def _mxfp4(blocks: Blocks) -> Values:
    """4-bit floats times a power of two, whose exponent is a byte; the smallest are subnormal."""
    exponent = blocks[:, :1].astype(np.uint32)
    tiny = np.uint32(0x00200000) << np.minimum(exponent, 1)
    scale = np.where(exponent < 2, tiny, (exponent - 1) << 23).astype(np.uint32).view(np.float32)
    return scale * np.array(FP4_VALUES, np.float32)[_nibbles(blocks[:, 1:])]


def _nvfp4(blocks: Blocks) -> Values:
    """4-bit floats, 16 columns with a scale of 4 bits of exponent and 3 of mantissa."""
    raw = blocks[:, :4]
    scale = ((raw & 127).astype(np.uint16) << 7).view(np.float16).astype(np.float32)
    scale = np.where(raw == 127, np.float32(0), scale * np.float32(128))
    places = _nibbles(blocks[:, 4:].reshape(-1, 8)).reshape(-1, 4, 16)
    return (scale[..., None] * np.array(FP4_VALUES, np.float32)[places]).reshape(-1, 64)


def _nibbles(packed: Blocks) -> NDArray[np.uint8]:
    """Low halves of all bytes, then high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _bits(packed: Blocks) -> NDArray[np.uint8]:
    """Bits of all bytes, lowest first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _q4_k(blocks: Blocks) -> Values:
    return _super_block(blocks, _nibbles_of_pairs(blocks[:, 16:]))


def _q5_k(blocks: Blocks) -> Values:
    """Bit g of byte c is the high bit of column c of group g."""
    high = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").transpose(0, 2, 1)
    return _super_block(blocks, _nibbles_of_pairs(blocks[:, 48:]) | high << np.uint8(4))


def _nibbles_of_pairs(packed: Blocks) -> NDArray[np.uint8]:
    """Eight groups of 32 from 128 bytes: each 32 bytes hold two groups."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)


def _super_block(blocks: Blocks, quants: NDArray[np.uint8]) -> Values:
    """Eight groups of 32: `d * scale * q - dmin * min`, scales and mins packed in 6 bits."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    mins = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    scale = _half(blocks[:, :2]) * scales.astype(np.float32)
    offset = _half(blocks[:, 2:4]) * mins.astype(np.float32)
    return (scale[..., None] * quants.astype(np.float32) - offset[..., None]).reshape(-1, 256)


def _q6_k(blocks: Blocks) -> Values:
    """Sixteen groups of 16: `d * scale * (q - 32)`, q in 4 low and 2 high bits."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    quants = (low | high << 4).astype(np.int8) - np.int8(32)
    scale = _half(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scale[..., None] * quants.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


def _q3_k(blocks: Blocks) -> Values:
    """Sixteen groups of 16: `d * scale * (q - 4)`, q in 2 low and 1 high bit, scales of 6 bits."""
    high = np.unpackbits(blocks[:, :32, None], axis=2, bitorder="little").transpose(0, 2, 1)
    quants = (_pairs(blocks[:, 32:96]) | high << 2).astype(np.int8) - np.int8(4)
    low = np.concatenate([blocks[:, 96:104] & 15, blocks[:, 96:104] >> 4], axis=1)
    top = np.concatenate([blocks[:, 104:108] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    scales = (low | top << 4).astype(np.int8) - np.int8(32)
    scale = _half(blocks[:, 108:]) * scales.astype(np.float32)
    values: Values = scale[..., None] * quants.reshape(-1, 16, 16).astype(np.float32)
    return values.reshape(-1, 256)


def _q2_k(blocks: Blocks) -> Values:
    """Sixteen groups of 16: `d * scale * q - dmin * min`, scale and min in 4 bits each."""
    quants = _pairs(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    scale = _half(blocks[:, 80:82]) * (blocks[:, :16] & 15).astype(np.float32)
    offset = _half(blocks[:, 82:84]) * (blocks[:, :16] >> 4).astype(np.float32)
    values: Values = scale[..., None] * quants - offset[..., None]
    return values.reshape(-1, 256)


def _tq2_0(blocks: Blocks) -> Values:
    """-1, 0 and 1, in 2 bits."""
    quants = _pairs(blocks[:, :64]).reshape(-1, 256).astype(np.int8) - np.int8(1)
    return _half(blocks[:, 64:]) * quants.astype(np.float32)


def _tq1_0(blocks: Blocks) -> Values:
    """-1, 0 and 1, five (at the end four) in a byte: digits to base 3 of a fraction of 256."""
    runs = []
    for first, last, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = np.array([1, 3, 9, 27, 81][:digits], np.uint8)
        runs.append((blocks[:, None, first:last] * powers[:, None]).reshape(len(blocks), -1))
    quants = (np.concatenate(runs, axis=1).astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
    return _half(blocks[:, 52:]) * quants.astype(np.float32)


def _pairs(packed: Blocks) -> NDArray[np.uint8]:
    """Eight groups of 32 from 64 bytes: each 32 bytes hold four groups."""
    parts = packed.reshape(-1, 2, 1, 32)
    quants: Blocks = parts >> _shifts(4, 2)[:, None] & np.uint8(3)
    return quants.reshape(-1, 8, 32)


def _shifts(count: int, width: int) -> Blocks:
    """To the right, for so many fields of so many bits, lowest first."""
    return np.arange(0, count * width, width, dtype=np.uint8)


def _half(raw: Blocks) -> Values:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


_TABLE: dict[TensorType, Callable[[Blocks], Values]] = {
    TensorType.F32: _f32,
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.IQ4_NL: _iq4_nl,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
    TensorType.IQ4_XS: _iq4_xs,
    TensorType.MXFP4: _mxfp4,
    TensorType.NVFP4: _nvfp4,
    TensorType.Q3_K: _q3_k,
    TensorType.Q2_K: _q2_k,
    TensorType.IQ3_S: grids.iq3_s,
    TensorType.IQ3_XXS: grids.iq3_xxs,
    TensorType.IQ2_S: grids.iq2_s,
    TensorType.IQ2_XS: grids.iq2_xs,
    TensorType.IQ2_XXS: grids.iq2_xxs,
    TensorType.IQ1_M: grids.iq1_m,
    TensorType.IQ1_S: grids.iq1_s,
    TensorType.TQ2_0: _tq2_0,
    TensorType.TQ1_0: _tq1_0,
}
SUPPORTED_TYPES: tuple[TensorType, ...] = tuple(_TABLE)
