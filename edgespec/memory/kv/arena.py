"""The KV arena: keys and values in blocks of positions, allocated as texts grow.

A block holds 256 positions of all layers and heads, so growing copies nothing. Every text has a
table of blocks. Texts that begin alike share the blocks of what they have in common; whoever writes
into a shared block gets a copy of it first. When all blocks that were planned are taken, whoever
keeps idle texts is asked to give one up. In a block, each layer's heads follow each other, a
head's keys before its values:

          keys                                      values
    f16   tiles of 16 positions [head_dim, 16]      rows [head_dim], one a position
    int8  tiles of 16 positions, quads of 4         quads of 4 positions [head_dim, 4]
          dimensions [head_dim / 4, 16, 4]
          then f16 scales [16 tiles, blocks, 16]    then f16 scales [256]
    latent                                          rows [head_dim] f16, keys and values in one
    q4    the same, blocks of 32 dimensions in      the same, a block's dimensions 0 .. 15 and
          half the bytes: [blocks, 4, 16, 4]        16 .. 31 in halves of bytes [blocks, 16, 4]

so that one load holds what the scoring loop multiplies by one part of a query, or the mixing loop
by one position's weight. Bytes of int8 are the number + 128, halves of bytes of q4 the number + 8,
of turned heads (`backends/native/kernels/kv/rotation.py`). A key has a scale for each block of 32
dimensions, a value has one. Dimensions are padded to 16 (int8 keys: to 4, q4: to 32).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import BudgetError
from edgespec.system.records import dataclass

BLOCK = 256
"""Positions in one block."""
ALIGNMENT = 64
"""Bytes; blocks start at multiples of it."""
TILE = 16
"""Positions in one tile of keys."""
SCALED = 32
"""Dimensions of an int8 or q4 key that share a scale."""
LATENT = "latent"
"""How rows are kept that are keys, and whose first numbers are values."""


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
        """The layout of "f16", "int8", "q4" or "latent" heads of this width."""
        padded = -(-head_dim // 16) * 16
        if kv_type == LATENT:
            rows = BLOCK * 2 * padded
            return cls(TILE * 2 * padded, rows, 0, 2 * padded, rows, rows)
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

    __slots__ = ("_memory", "address", "content", "num_owners")

    def __init__(self, memory: NDArray[np.uint8], size_bytes: int) -> None:
        """`memory` has room for the block behind the first multiple of 64 bytes."""
        start = -memory.ctypes.data % ALIGNMENT
        self._memory = memory
        self.content = memory[start : start + size_bytes]
        self.address = memory.ctypes.data + start
        """Where it starts, on a cache line."""
        self.num_owners = 1


class KvArena:
    """All blocks of one model; `table` makes a text's table, of up to `max_positions`.

    At most as many blocks are allocated as `num_texts` such texts fill.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        max_positions: int,
        kv_type: str = "f16",
        num_texts: int = 1,
        reach: int = 0,
    ) -> None:
        """`reach` is how many positions a sequence keeps at a time, 0 for all."""
        self.kv_type = kv_type
        self.layout = KvLayout.of(kv_type, head_dim)
        self.block_bytes = num_layers * num_kv_heads * self.layout.head_bytes
        self.max_blocks = -(-max_positions // BLOCK)
        """Of one text."""
        kept = min(self.max_blocks, -(-reach // BLOCK)) if reach else self.max_blocks
        self.most_blocks = num_texts * kept
        self.num_blocks = 0
        """Allocated now; one that is shared counts once."""
        self.make_room: Callable[[], bool] = lambda: False
        """Gives up an idle text's blocks; False when there is none."""

    def table(self) -> BlockTable:
        """An empty table."""
        return BlockTable(self)

    @property
    def size_bytes(self) -> int:
        """Bytes allocated now."""
        return self.num_blocks * (self.block_bytes + ALIGNMENT)

    def allocate(self) -> Block:
        """A block of zeros with one owner.

        Raises BudgetError when all that were planned are in use, MemoryError when the system has
        no memory left and no text is idle.
        """
        self._find_room()
        block = self._allocated()
        self.num_blocks += 1
        return block

    def lend(self, content: NDArray[np.uint8]) -> Block:
        """A block with one owner around content that is somewhere else, from a multiple of 64
        bytes on, such as a mapped file's pages; it counts like others. Errors as `allocate`.
        """
        self._find_room()
        self.num_blocks += 1
        return Block(content, self.block_bytes)

    def _find_room(self) -> None:
        while self.num_blocks >= self.most_blocks:
            if not self.make_room():
                raise BudgetError(
                    f"all {self.most_blocks} blocks of {BLOCK} positions that were planned for "
                    "keys and values are in use; end a reply, or load with a larger --context"
                )

    def _allocated(self) -> Block:
        while True:
            try:
                memory = np.zeros(self.block_bytes + ALIGNMENT, dtype=np.uint8)
                return Block(memory, self.block_bytes)
            except MemoryError:
                if not self.make_room():
                    raise

    def owned(self, block: Block) -> Block:
        """What a table may write to instead of a block it holds: itself, or a copy where other
        tables hold it or it is somewhere else. Errors as `allocate`.
        """
        while block.num_owners > 1 and self.num_blocks >= self.most_blocks and self.make_room():
            pass  # perhaps it was the other owner that made room
        is_shared = block.num_owners > 1
        if not is_shared and block.content.flags.writeable:
            return block
        copy = self.allocate() if is_shared else self._allocated()  # or takes its place
        copy.content[:] = block.content
        if is_shared:
            self.free(block)
        return copy

    def free(self, block: Block) -> int:
        """One owner fewer; returns how many bytes that gave back."""
        block.num_owners -= 1
        if block.num_owners:
            return 0
        self.num_blocks -= 1
        return self.block_bytes + ALIGNMENT


class BlockTable:
    """One text's blocks in order; `addresses[i]` is where block i starts, 0 past the last."""

    def __init__(self, arena: KvArena) -> None:
        self._arena = arena
        self._blocks: list[Block] = []
        self._num_dropped = 0
        """The first so many are gone: no position that is to come sees them."""
        self.addresses = np.zeros(arena.max_blocks, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def tables(self) -> tuple[BlockTable, ...]:
        """One for each shape of attention: here the only one (see `sequence_tables.py`)."""
        return (self,)

    def reserve(self, first: int, last: int) -> None:
        """Make positions `first` .. `last - 1` this table's own to write.

        Blocks that are missing are allocated, shared ones copied; the rest stay where they are.
        """
        begin = max(first // BLOCK, self._num_dropped)
        for index in range(begin, min(-(-last // BLOCK), len(self._blocks))):
            own = self._blocks[index] = self._arena.owned(self._blocks[index])
            self.addresses[index] = own.address
        while len(self._blocks) * BLOCK < last:
            self._blocks.append(block := self._arena.allocate())
            self.addresses[len(self._blocks) - 1] = block.address

    def append(self, content: NDArray[np.uint8]) -> None:
        """Go on with a block that is somewhere else (`KvArena.lend`); read-only, it is copied
        before it is written to.
        """
        self._blocks.append(block := self._arena.lend(content))
        self.addresses[len(self._blocks) - 1] = block.address

    def release(self, positions: int) -> int:
        """Give back whole blocks past this many positions; returns how many bytes were freed."""
        keep = -(-positions // BLOCK)
        dropped = self._blocks[max(keep, self._num_dropped) :]
        del self._blocks[keep:]
        self.addresses[keep:] = 0
        self._num_dropped = min(self._num_dropped, keep)
        return sum(map(self._arena.free, dropped))

    def drop(self, positions: int) -> None:
        """Give back whole blocks before this position, for good."""
        last = min(positions // BLOCK, len(self._blocks))
        for index in range(self._num_dropped, last):
            self._arena.free(self._blocks[index])
            self.addresses[index] = 0
        self._num_dropped = max(self._num_dropped, last)

    def begin_at(self, position: int) -> None:
        """Forget everything, and be as if whole blocks before this position had been dropped."""
        self.release(0)
        gone = Block(np.zeros(ALIGNMENT, np.uint8), 0)
        self._num_dropped = position // BLOCK
        self._blocks = [gone] * self._num_dropped

    @property
    def first_position(self) -> int:
        """The first position that is not dropped."""
        return self._num_dropped * BLOCK

    def fork(self, positions: int) -> BlockTable:
        """Another table that shares the blocks of the first `positions` positions."""
        other = BlockTable(self._arena)
        other._num_dropped = self._num_dropped
        for index, block in enumerate(self._blocks[: -(-positions // BLOCK)]):
            other._blocks.append(block)
            if index >= self._num_dropped:
                block.num_owners += 1
                other.addresses[index] = block.address
        return other

    def contents(self, positions: int) -> list[NDArray[np.uint8]]:
        """The blocks that hold the first `positions` positions, but for those dropped, in place."""
        kept = self._blocks[self._num_dropped : -(-positions // BLOCK)]
        return [block.content for block in kept]

    def own_contents(self, first: int, last: int) -> list[NDArray[np.uint8]]:
        """The blocks that hold positions `first` .. `last - 1`, in place and this table's own."""
        self.reserve(first, last)
        return self.contents(last)[max(first // BLOCK - self._num_dropped, 0) :]
