"""The KV arena against a list of blocks: grow, shrink, copy and load in any order."""

from __future__ import annotations

import ctypes

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from edgespec.memory.arena import BLOCK, KvArena
from edgespec.memory.settings import KV_TYPES

MOST = 6 * BLOCK - 10


class ArenaMachine(RuleBasedStateMachine):
    """Each block holds one byte value all over; the model is the list of these values."""

    @initialize(
        layers=st.integers(1, 3),
        heads=st.integers(1, 3),
        head_dim=st.sampled_from([1, 8, 16, 40]),
        kv_type=st.sampled_from(KV_TYPES),
    )
    def open(self, layers: int, heads: int, head_dim: int, kv_type: str) -> None:
        self.arena = KvArena(layers, heads, head_dim, MOST, kv_type)
        pair = {1: 64, 8: 64, 16: 64, 40: 192}[head_dim]
        if kv_type == "int8":  # key and its scales, value and its scale
            pair = {1: 4 + 2 + 16 + 2, 8: 8 + 2 + 16 + 2, 16: 36, 40: 40 + 4 + 48 + 2}[head_dim]
        self.block_bytes = layers * heads * BLOCK * pair
        self.blocks: list[int] = []
        self.places: list[int] = []
        self.copies: list[tuple[list[int], list[NDArray[np.uint8]]]] = []

    @rule(positions=st.integers(0, MOST))
    def reserve(self, positions: int) -> None:
        self.arena.reserve(positions)
        self.blocks += [0] * (-(-positions // BLOCK) - len(self.blocks))
        kept = self.arena.addresses[: len(self.places)].tolist()
        assert kept == self.places  # what is there stays where it is

    @rule(positions=st.integers(0, MOST))
    def release(self, positions: int) -> None:
        keep = -(-positions // BLOCK)
        freed = self.arena.release(positions)
        assert freed == len(self.blocks[keep:]) * (self.block_bytes + 64)
        del self.blocks[keep:]

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), value=st.integers(1, 255))
    def write(self, data: st.DataObject, value: int) -> None:
        index = data.draw(st.integers(0, len(self.blocks) - 1))
        ctypes.memset(int(self.arena.addresses[index]), value, self.block_bytes)
        self.blocks[index] = value

    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        positions = data.draw(st.integers(0, len(self.blocks) * BLOCK))
        copies = self.arena.copy_blocks(positions)
        count = -(-positions // BLOCK)
        assert [block.nbytes for block in copies] == [self.block_bytes] * count
        self.copies.append((self.blocks[:count], copies))

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        values, copies = data.draw(st.sampled_from(self.copies))
        self.arena.load_blocks(copies)
        self.blocks[: len(values)] = values

    @invariant()
    def holds_what_was_written(self) -> None:
        if not hasattr(self, "arena"):
            return
        self.places = self.arena.addresses[: len(self.blocks)].tolist()
        assert self.arena.size_bytes == len(self.blocks) * (self.block_bytes + 64)
        assert not self.arena.addresses[len(self.blocks) :].any()
        assert all(place % 64 == 0 for place in self.places)
        for place, value in zip(self.places, self.blocks, strict=True):
            assert set(ctypes.string_at(place, self.block_bytes)) == {value}


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
