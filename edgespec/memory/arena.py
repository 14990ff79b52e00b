"""The KV arena: keys and values in blocks of positions, allocated as the conversation grows.

A block holds 256 positions of all layers and heads, so growing copies nothing. In it, each layer's
heads follow each other, a head's keys before its values:

          keys                                      values
    f16   tiles of 16 positions [head_dim, 16]      rows [head_dim], one a position
    int8  tiles of 16 positions, quads of 4         quads of 4 positions [head_dim, 4]
          dimensions [head_dim / 4, 16, 4]
          then f16 scales [16 tiles, blocks, 16]    then f16 scales [256]

so that one load holds what the scoring loop multiplies by one part of a query, or the mixing loop
by one position's weight. Bytes of int8 are the number + 128. A key has a scale for each block of 32
dimensions, a value has one. Dimensions are padded to 16 (int8 keys: to 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

BLOCK = 256
"""Positions in one block."""
TILE = 16
"""Positions in one tile of keys."""
SCALED = 32
"""Dimensions of an int8 key that share a scale."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Where things lie in one head's part of a block, in bytes."""

    key_tile_bytes: int
    key_scales: int
    """From the first key to the scales of the keys."""
    key_bytes: int
    """All keys with their scales: from the first key to the first value."""
    value_bytes: int
    """One row of values (f16), or the rows of four positions (int8)."""
    value_scales: int
    """From the first value to the scales of the values."""
    head_bytes: int

    @classmethod
    def of(cls, kv_type: str, head_dim: int) -> Self:
        """The layout of "f16" or "int8" heads of this width."""
        padded = -(-head_dim // 16) * 16
        if kv_type == "f16":
            keys, values = BLOCK * 2 * padded, BLOCK * 2 * padded
            return cls(TILE * 2 * padded, keys, keys, 2 * padded, values, keys + values)
        tile = TILE * 4 * -(-head_dim // 4)
        keys = BLOCK // TILE * tile
        key_bytes = keys + BLOCK * 2 * -(-head_dim // SCALED)
        values = BLOCK * padded
        return cls(tile, keys, key_bytes, 4 * padded, values, key_bytes + values + BLOCK * 2)


class KvArena:
    """Owns the blocks of one session; `addresses[i]` is where block i starts."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        max_positions: int,
        kv_type: str = "f16",
    ) -> None:
        self.kv_type = kv_type
        self.layout = KvLayout.of(kv_type, head_dim)
        self.block_bytes = num_layers * num_kv_heads * self.layout.head_bytes
        self.addresses = np.zeros(-(-max_positions // BLOCK), dtype=np.int64)
        self._blocks: list[NDArray[np.uint8]] = []

    def reserve(self, positions: int) -> None:
        """Make room for this many positions; existing blocks stay where they are."""
        while len(self._blocks) * BLOCK < positions:
            block = np.zeros(self.block_bytes + 64, dtype=np.uint8)
            self.addresses[len(self._blocks)] = -(-block.ctypes.data // 64) * 64
            self._blocks.append(block)

    def release(self, positions: int) -> int:
        """Give back whole blocks past this many positions; returns how many bytes were freed."""
        keep = -(-positions // BLOCK)
        dropped = self._blocks[keep:]
        del self._blocks[keep:]
        self.addresses[keep:] = 0
        return sum(block.nbytes for block in dropped)

    def copy_blocks(self, positions: int) -> list[NDArray[np.uint8]]:
        """Copies of the blocks that hold the first `positions` positions."""
        return [self._view(index).copy() for index in range(-(-positions // BLOCK))]

    def load_blocks(self, blocks: list[NDArray[np.uint8]]) -> None:
        """Overwrite the first blocks with copies taken earlier."""
        self.reserve(len(blocks) * BLOCK)
        for index, block in enumerate(blocks):
            self._view(index)[:] = block

    @property
    def size_bytes(self) -> int:
        """Bytes allocated now."""
        return sum(block.nbytes for block in self._blocks)

    def _view(self, index: int) -> NDArray[Any]:
        block = self._blocks[index]
        start = int(self.addresses[index]) - block.ctypes.data
        return block[start : start + self.block_bytes]
