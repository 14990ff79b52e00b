"""The KV arena: keys and values in blocks of positions, allocated as texts grow.

A block holds 256 positions of all layers and heads, so growing copies nothing. Every text has a
table of blocks. Texts that begin alike share the blocks of what they have in common; whoever writes
into a shared block gets a copy of it first. In a block, each layer's heads follow each other, a
head's keys before its values:

          keys                                      values
    f16   tiles of 16 positions [head_dim, 16]      rows [head_dim], one a position
    int8  tiles of 16 positions, quads of 4         quads of 4 positions [head_dim, 4]
          dimensions [head_dim / 4, 16, 4]
          then f16 scales [16 tiles, blocks, 16]    then f16 scales [256]
    q4    the same, blocks of 32 dimensions in      the same, a block's dimensions 0 .. 15 and
          half the bytes: [blocks, 4, 16, 4]        16 .. 31 in halves of bytes [blocks, 16, 4]

so that one load holds what the scoring loop multiplies by one part of a query, or the mixing loop
by one position's weight. Bytes of int8 are the number + 128, halves of bytes of q4 the number + 8,
of a rotated head (`kernels/kv_rotation.py`). A key has a scale for each block of 32 dimensions, a
value has one. Dimensions are padded to 16 (int8 keys: to 4, q4: to 32).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

BLOCK = 256
"""Positions in one block."""
ALIGNMENT = 64
"""Bytes; blocks start at multiples of it."""
TILE = 16
"""Positions in one tile of keys."""
SCALED = 32
"""Dimensions of an int8 or q4 key that share a scale."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Where things lie in one head's part of a block, in bytes."""

    key_tile_bytes: int
    key_scales: int
    """From the first key to the scales of the keys."""
    key_bytes: int
    """All keys with their scales: from the first key to the first value."""
    value_bytes: int
    """One row of values (f16), or the rows of four positions."""
    value_scales: int
    """From the first value to the scales of the values."""
    head_bytes: int

    @classmethod
    def of(cls, kv_type: str, head_dim: int) -> Self:
        """The layout of "f16", "int8" or "q4" heads of this width."""
        padded = -(-head_dim // 16) * 16
        if kv_type == "f16":
            keys, values = BLOCK * 2 * padded, BLOCK * 2 * padded
            return cls(TILE * 2 * padded, keys, keys, 2 * padded, values, keys + values)
        blocks = -(-head_dim // SCALED)
        key, value = 4 * -(-head_dim // 4), padded
        if kv_type == "q4":
            key = value = blocks * SCALED // 2
        keys, values = BLOCK * key, BLOCK * value
        key_bytes = keys + BLOCK * 2 * blocks
        return cls(TILE * key, keys, key_bytes, 4 * value, values, key_bytes + values + BLOCK * 2)


class Block:
    """256 positions, and how many tables hold them."""

    __slots__ = ("address", "data", "num_owners")

    def __init__(self, size_bytes: int) -> None:
        self.data = np.zeros(size_bytes + ALIGNMENT, dtype=np.uint8)
        self.address = -(-self.data.ctypes.data // ALIGNMENT) * ALIGNMENT
        """Where it starts, on a cache line."""
        self.num_owners = 1

    def view(self) -> NDArray[np.uint8]:
        """The bytes from the address on."""
        start = self.address - self.data.ctypes.data
        return self.data[start : start + len(self.data) - ALIGNMENT]


class KvArena:
    """All blocks of one model; `table` makes a text's table, of up to `max_positions`."""

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
        self.max_blocks = -(-max_positions // BLOCK)
        self.num_blocks = 0
        """Allocated now; one that is shared counts once."""

    def table(self) -> BlockTable:
        """An empty table."""
        return BlockTable(self)

    @property
    def size_bytes(self) -> int:
        """Bytes allocated now."""
        return self.num_blocks * (self.block_bytes + ALIGNMENT)

    def allocate(self) -> Block:
        """A block of zeros with one owner."""
        block = Block(self.block_bytes)
        self.num_blocks += 1
        return block

    def free(self, block: Block) -> int:
        """One owner fewer; returns how many bytes that gave back."""
        block.num_owners -= 1
        if block.num_owners:
            return 0
        self.num_blocks -= 1
        return block.data.nbytes


class BlockTable:
    """One text's blocks in order; `addresses[i]` is where block i starts, 0 past the last."""

    def __init__(self, arena: KvArena) -> None:
        self._arena = arena
        self._blocks: list[Block] = []
        self.addresses = np.zeros(arena.max_blocks, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._blocks)

    def reserve(self, first: int, last: int) -> None:
        """Make positions `first` .. `last - 1` this table's own to write.

        Blocks that are missing are allocated, shared ones copied; the rest stay where they are.
        """
        for index in range(first // BLOCK, min(-(-last // BLOCK), len(self._blocks))):
            shared = self._blocks[index]
            if shared.num_owners > 1:
                own = self._arena.allocate()
                own.view()[:] = shared.view()
                self._put(index, own)
                self._arena.free(shared)
        while len(self._blocks) * BLOCK < last:
            self._blocks.append(block := self._arena.allocate())
            self.addresses[len(self._blocks) - 1] = block.address

    def release(self, positions: int) -> int:
        """Give back whole blocks past this many positions; returns how many bytes were freed."""
        keep = -(-positions // BLOCK)
        dropped = self._blocks[keep:]
        del self._blocks[keep:]
        self.addresses[keep:] = 0
        return sum(map(self._arena.free, dropped))

    def fork(self, positions: int) -> BlockTable:
        """Another table that shares the blocks of the first `positions` positions."""
        other = BlockTable(self._arena)
        for index, block in enumerate(self._blocks[: -(-positions // BLOCK)]):
            block.num_owners += 1
            other._blocks.append(block)
            other.addresses[index] = block.address
        return other

    def copy_blocks(self, positions: int) -> list[NDArray[np.uint8]]:
        """Copies of the blocks that hold the first `positions` positions."""
        return [block.view().copy() for block in self._blocks[: -(-positions // BLOCK)]]

    def load_blocks(self, blocks: list[NDArray[np.uint8]]) -> None:
        """Overwrite the first blocks with copies taken earlier."""
        self.reserve(0, len(blocks) * BLOCK)
        for block, data in zip(self._blocks, blocks, strict=False):
            block.view()[:] = data

    def _put(self, index: int, block: Block) -> None:
        self._blocks[index] = block
        self.addresses[index] = block.address
