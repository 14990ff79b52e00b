"""Queries, keys, values and weights as attention's machine code takes them, and what they mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels.attention.spans import ROW_BLOCK, WIDTH
from edgespec.memory.kv.arena import SCALED, TILE

Exact = NDArray[np.float64]


class Packed(NamedTuple):
    """Arrays for the machine code, and the numbers they hold."""

    data: NDArray[Any]
    scales: NDArray[np.float16]
    """Of int8; empty for f16."""
    exact: Exact


def _random(*shape: int, seed: int, most: int = 128) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(1 - most, most, shape)


def _normal(*shape: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


_NONE = np.zeros(0, np.float16)
OFFSETS = {"int8": 128, "q4": 8}
"""What is added to a stored number."""


def queries(kv_type: str, dim: int, seed: int = 1) -> Packed:
    """Twelve rows; the first of int8 are the least there is in all digits."""
    if kv_type == "f16":
        data = np.zeros((-(-dim // 16) * 16, ROW_BLOCK), np.float32)
        data[:dim] = _normal(dim, ROW_BLOCK, seed=seed)
        return Packed(data, _NONE, data[:dim].T.astype(np.float64))
    blocks = -(-dim // SCALED)
    digits = np.zeros((2, blocks * SCALED, ROW_BLOCK), np.int64)
    digits[:, :dim] = _random(2, dim, ROW_BLOCK, seed=seed)
    digits[:, :dim, 0] = -127
    numbers = 256 * digits[0] + digits[1]
    steps = np.abs(_normal(ROW_BLOCK, seed=seed)) / 1000
    starts = -OFFSETS[kv_type] * numbers.reshape(blocks, SCALED, ROW_BLOCK).sum(axis=1)
    # [digit, quad, place, row] to [quad, digit, row, place]
    bits = digits.reshape(2, -1, 4, ROW_BLOCK).transpose(1, 0, 3, 2).astype(np.int8)
    parts = (bits, steps, starts.astype(np.int32))
    data = np.frombuffer(b"".join(part.tobytes() for part in parts), np.uint8)
    return Packed(data, _NONE, (numbers[:dim] * steps).T)


def keys(kv_type: str, tiles: int, dim: int, seed: int = 2) -> Packed:
    """Tiles of 16 positions."""
    if kv_type == "f16":
        data = np.zeros((tiles, -(-dim // 16) * 16, TILE), np.float16)
        data[:, :dim] = _normal(tiles, dim, TILE, seed=seed)
        exact = data[:, :dim].transpose(0, 2, 1).reshape(-1, dim)
        return Packed(data, _NONE, exact.astype(np.float64))
    quads, blocks, offset = -(-dim // 4), -(-dim // SCALED), OFFSETS[kv_type]
    if kv_type == "q4":
        quads = 8 * blocks
    numbers = np.zeros((tiles, quads * 4, TILE), np.int64)
    numbers[:, :dim] = _random(tiles, dim, TILE, seed=seed, most=offset)
    scales = np.abs(_normal(tiles, blocks, TILE, seed=seed)).astype(np.float16)
    octets: Any = (numbers + offset).astype(np.uint8).reshape(tiles, quads, 4, TILE)
    data = np.ascontiguousarray(octets.transpose(0, 1, 3, 2))
    if kv_type == "q4":  # a block's first four quads and its last four in halves of bytes
        halves: Any = data.reshape(tiles, blocks, 2, 4, TILE, 4)
        data = halves[:, :, 0] | halves[:, :, 1] << 4
        data = data.reshape(tiles, 4 * blocks, TILE, 4)
    exact = numbers[:, :dim] * np.repeat(scales, SCALED, axis=1)[:, :dim]
    return Packed(data, scales, exact.transpose(0, 2, 1).reshape(-1, dim).astype(np.float64))


def values(kv_type: str, slots: int, dim: int, seed: int = 3) -> Packed:
    """Positions in whole quads, dimensions in whole vectors; scales are left to the weights."""
    padded = -(-dim // 16) * 16
    if kv_type == "f16":
        data = _normal(slots, padded, seed=seed).astype(np.float16)
        return Packed(data, _NONE, data.astype(np.float64))
    offset = OFFSETS[kv_type]
    numbers = _random(slots, padded, seed=seed, most=offset)
    scales = np.abs(_normal(slots, seed=seed)).astype(np.float16)
    octets: Any = (numbers + offset).astype(np.uint8).reshape(-1, 4, padded)
    data = np.ascontiguousarray(octets.transpose(0, 2, 1))
    if kv_type == "q4":  # a block's first 16 dimensions and its last 16 in halves of bytes
        data = np.concatenate([data, np.zeros((len(data), -padded % SCALED, 4), np.uint8)], axis=1)
        halves: Any = data.reshape(len(data), -1, 2, 16, 4)
        data = np.ascontiguousarray(halves[:, :, 0] | halves[:, :, 1] << 4)
        data = data.reshape(len(data), -1, 4)
    return Packed(data, scales, numbers.astype(np.float64))


def weights(rows: int, slots: int, seed: int = 4) -> NDArray[np.float32]:
    """Rows as far apart as scores are, [rows, WIDTH]; zeros past the slots."""
    data = np.zeros((rows, WIDTH), np.float32)
    data[:, :slots] = np.exp(2.0 * _normal(rows, slots, seed=seed) - 6.0)
    return data


def digits(row: NDArray[np.float32], slots: int) -> NDArray[np.int64]:
    """The integers in a row of weights that were made digits."""
    pairs = row.view(np.int8)[: 2 * slots].reshape(-1, 2, 4).astype(np.int64)
    return (256 * pairs[:, 0] + pairs[:, 1]).ravel()
