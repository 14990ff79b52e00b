"""Types whose weights are entries of a grid (IQ1, IQ2, IQ3), turned into float32.

Blocks are `[n, block_bytes]` u8 and values `[n, 256]` f32, as in `dequantise.py`. All products are
exact in float32, so their order does not matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.models.gguf.codebooks import (
    IQ2_MAGNITUDES,
    IQ3_S_MAGNITUDES,
    IQ3_XXS_MAGNITUDES,
    grid,
)
from edgespec.models.spec import TensorType

Blocks = NDArray[np.uint8]
Values = NDArray[np.float32]


def iq2_xxs(blocks: Blocks) -> Values:
    """For 32 columns four places in the grid, four times seven signs, and a scale of 4 bits."""
    words = _words(blocks[:, 2:]).reshape(-1, 8, 2)
    places = words[..., :1] >> np.arange(0, 32, 8, dtype=np.uint32) & 255
    scale = _half(blocks[:, :2]) * _odd(words[..., 1] >> 28) * np.float32(0.125)
    values = _entries(TensorType.IQ2_XXS, IQ2_MAGNITUDES, places)
    return _scaled(scale, values * _sevens(words[..., 1]))


def iq2_xs(blocks: Blocks) -> Values:
    """For 8 columns a place of 9 bits and seven signs."""
    words = np.ascontiguousarray(blocks[:, 2:66]).view("<u2")
    scale = _half(blocks[:, :2]) * _odd(_nibbles(blocks[:, 66:])) * np.float32(0.125)
    values = _entries(TensorType.IQ2_XS, IQ2_MAGNITUDES, words & 511)
    return _scaled(scale, values * _signs(_eight(words >> 9)))


def iq2_s(blocks: Blocks) -> Values:
    """For 8 columns a place of 8 bits and 2 more, and eight signs."""
    places = blocks[:, 2:34].astype(np.uint16) | _fields(blocks[:, 66:74], 2).astype(np.uint16) << 8
    scale = _half(blocks[:, :2]) * _odd(_nibbles(blocks[:, 74:])) * np.float32(0.125)
    values = _entries(TensorType.IQ2_S, IQ2_MAGNITUDES, places)
    return _scaled(scale, values * _signs(blocks[:, 34:66]))


def iq3_xxs(blocks: Blocks) -> Values:
    """For 4 columns a place; for 32 columns four times seven signs and a scale of 4 bits."""
    words = _words(blocks[:, 66:])
    scale = _half(blocks[:, :2]) * _odd(words >> 28) * np.float32(0.25)
    values = _entries(TensorType.IQ3_XXS, IQ3_XXS_MAGNITUDES, blocks[:, 2:66])
    return _scaled(scale, values.reshape(len(blocks), -1, 8) * _sevens(words))


def iq3_s(blocks: Blocks) -> Values:
    """For 4 columns a place of 8 bits and 1 more; a sign for each column."""
    places = blocks[:, 2:66].astype(np.uint16) | _fields(blocks[:, 66:74], 1).astype(np.uint16) << 8
    scale = _half(blocks[:, :2]) * _odd(_nibbles(blocks[:, 106:]))
    values = _entries(TensorType.IQ3_S, IQ3_S_MAGNITUDES, places)
    return _scaled(scale, values.reshape(len(blocks), -1, 8) * _signs(blocks[:, 74:106]))


def iq1_s(blocks: Blocks) -> Values:
    """For 32 columns four places of 8 bits and 3 more, a scale of 3 bits, and the eighth's sign."""
    high = np.ascontiguousarray(blocks[:, 34:]).view("<u2")
    more = (high[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(len(blocks), -1)
    places = blocks[:, 2:34].astype(np.uint16) | more << 8
    scale = _half(blocks[:, :2]) * _odd(high >> 12 & 7)
    eighth = np.where(high >> 15, np.float32(-0.125), np.float32(0.125))
    values = _entries(TensorType.IQ1_S, (-1, 0, 1), places)
    return _scaled(scale, values + np.repeat(eighth, 4, axis=1)[..., None])


def iq1_m(blocks: Blocks) -> Values:
    """For 8 columns a place and an eighth's sign in 12 bits, for 16 a scale of 3; the f16 is in
    four pieces.
    """
    high = _fields(blocks[:, 32:48], 4)
    places = blocks[:, :32].astype(np.uint16) | (high & 7).astype(np.uint16) << 8
    packed = np.ascontiguousarray(blocks[:, 48:]).view("<u2")
    pieces = packed >> 12 << np.arange(0, 16, 4, dtype=np.uint16)
    step = np.bitwise_or.reduce(pieces, axis=1, keepdims=True).view(np.float16)
    scales = (packed[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(-1, 16)
    eighth = np.where(high >> 3, np.float32(-0.125), np.float32(0.125))
    values = _entries(TensorType.IQ1_M, (-1, 0, 1), places)
    return _scaled(step.astype(np.float32) * _odd(scales), values + eighth[..., None])


def _entries(kind: TensorType, magnitudes: tuple[int, ...], places: NDArray[Any]) -> Values:
    """Magnitudes [n, entries, 4 or 8] of places [n, ...]."""
    table = np.array(magnitudes, np.float32)[grid(kind)]
    found: Values = table[places.reshape(len(places), -1)]
    return found


def _scaled(scale: Values, values: Values) -> Values:
    """Scales [n, groups] times values [n, ...] of as many columns in each group."""
    products: Values = scale[..., None] * values.reshape(*scale.shape, -1)
    return products.reshape(len(values), -1)


def _sevens(words: NDArray[np.uint32]) -> Values:
    """Signs [n, entries, 8] of four times seven bits in each word [n, words]."""
    sevens = words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127
    return _signs(_eight(sevens.reshape(len(words), -1)))


def _eight(seven: NDArray[Any]) -> Blocks:
    """Seven signs with an eighth that makes the number of ones even."""
    bits = np.unpackbits(seven.astype(np.uint8)[..., None], axis=-1).sum(axis=-1)
    signs: Blocks = (seven | (bits & 1) << 7).astype(np.uint8)
    return signs


def _signs(packed: Blocks) -> Values:
    """[n, bytes, 8]: -1 where a bit is set, 1 where it is not."""
    bits = np.unpackbits(packed[..., None], axis=-1, bitorder="little")
    return np.where(bits, np.float32(-1), np.float32(1))


def _fields(packed: Blocks, width: int) -> Blocks:
    """Fields of so many bits of all bytes [n, bytes], lowest first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    fields: Blocks = packed[..., None] >> shifts & np.uint8((1 << width) - 1)
    return fields.reshape(len(packed), -1)


def _nibbles(packed: Blocks) -> Blocks:
    return _fields(packed, 4)


def _words(packed: Blocks) -> NDArray[np.uint32]:
    return np.ascontiguousarray(packed).view("<u4")


def _odd(scales: NDArray[Any]) -> Values:
    """The odd numbers that grid types' scales stand for."""
    return (2 * scales + 1).astype(np.float32)


def _half(raw: Blocks) -> Values:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)
