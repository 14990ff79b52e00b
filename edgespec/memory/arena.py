"""The KV arena: keys and values in blocks of positions, allocated as the conversation grows.

A block holds all layers and heads of 256 positions, so growing copies nothing. Keys lie in tiles of
16 positions, [head_dim, 16] f16, which is what the scoring loop loads; values in rows [head_dim]
f16 padded to 16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 256
"""Positions in one block."""


class KvArena:
    """Owns the blocks of one session; `addresses[i]` is where block i starts."""

    def __init__(
        self, num_layers: int, num_kv_heads: int, head_dim: int, max_positions: int
    ) -> None:
        self.value_bytes = 2 * (-(-head_dim // 16) * 16)
        self.key_tile_bytes = 16 * self.value_bytes
        self.plane_bytes = BLOCK * self.value_bytes
        self.num_kv_heads = num_kv_heads
        self.block_bytes = num_layers * 2 * num_kv_heads * self.plane_bytes
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
