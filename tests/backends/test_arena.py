"""The KV arena against lists of blocks: tables grow, shrink, fork, are written to, copied and
loaded in any order.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from edgespec.errors import BudgetError
from edgespec.memory.kv.arena import BLOCK, BlockTable, KvArena
from edgespec.memory.plan.settings import KV_TYPES

MOST = 6 * BLOCK - 10
MOST_TABLES = 4
Content = list[list[int]]
"""What a table's blocks hold: one byte value each, in a list that tables with the block share."""


class ArenaMachine(RuleBasedStateMachine):
    """Each block holds one byte value all over. The model of a table is a list of cells; a cell
    that several tables hold is a shared block.
    """

    @initialize(
        layers=st.integers(1, 3),
        heads=st.integers(1, 3),
        head_dim=st.sampled_from([1, 8, 16, 40]),
        kv_type=st.sampled_from(KV_TYPES),
    )
    def open(self, layers: int, heads: int, head_dim: int, kv_type: str) -> None:
        self.arena = KvArena(layers, heads, head_dim, MOST, kv_type, MOST_TABLES)
        pair = {1: 64, 8: 64, 16: 64, 40: 192}[head_dim]
        if kv_type == "int8":  # key and its scales, value and its scale
            pair = {1: 4 + 2 + 16 + 2, 8: 8 + 2 + 16 + 2, 16: 36, 40: 40 + 4 + 48 + 2}[head_dim]
        elif kv_type == "q4":
            pair = 32 + 4 + 32 + 2 if head_dim == 40 else 16 + 2 + 16 + 2
        self.block_bytes = layers * heads * BLOCK * pair
        self.tables: list[tuple[BlockTable, Content]] = [(self.arena.table(), [])]
        self.copies: list[tuple[list[int], list[NDArray[np.uint8]]]] = []

    def _owners(self, cell: list[int]) -> int:
        return sum(cell is other for _, cells in self.tables for other in cells)

    def _make_own(self, cells: Content, first: int, last: int) -> None:
        """What reserving these positions does to the model."""
        for index in range(first // BLOCK, min(-(-last // BLOCK), len(cells))):
            if self._owners(cells[index]) > 1:
                cells[index] = list(cells[index])
        cells += [[0] for _ in range(-(-last // BLOCK) - len(cells))]

    def _draw(self, data: st.DataObject) -> tuple[BlockTable, Content]:
        return self.tables[data.draw(st.integers(0, len(self.tables) - 1), label="table")]

    @rule(data=st.data(), first=st.integers(0, MOST), count=st.integers(0, MOST))
    def reserve(self, data: st.DataObject, first: int, count: int) -> None:
        table, cells = self._draw(data)
        last = min(first + count, MOST)
        kept = {
            index: int(table.addresses[index])
            for index, cell in enumerate(cells)
            if self._owners(cell) == 1
        }
        table.reserve(first, last)
        self._make_own(cells, first, last)
        # what is nobody else's stays where it is
        assert all(table.addresses[index] == place for index, place in kept.items())

    @rule(data=st.data(), positions=st.integers(0, MOST))
    def release(self, data: st.DataObject, positions: int) -> None:
        table, cells = self._draw(data)
        keep = -(-positions // BLOCK)
        last_owners = sum(self._owners(cell) == 1 for cell in cells[keep:])
        assert table.release(positions) == last_owners * (self.block_bytes + 64)
        del cells[keep:]

    @precondition(lambda self: len(self.tables) < MOST_TABLES)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, cells = self._draw(data)
        positions = data.draw(st.integers(0, len(cells) * BLOCK), label="positions")
        self.tables.append((table.fork(positions), cells[: -(-positions // BLOCK)]))

    @precondition(lambda self: len(self.tables) > 1)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        table, cells = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        table.release(0)
        cells.clear()

    @rule(data=st.data(), value=st.integers(1, 255))
    def write(self, data: st.DataObject, value: int) -> None:
        table, cells = self._draw(data)
        if cells:
            index = data.draw(st.integers(0, len(cells) - 1), label="block")
            table.reserve(index * BLOCK + 3, index * BLOCK + 4)
            self._make_own(cells, index * BLOCK + 3, index * BLOCK + 4)
            ctypes.memset(int(table.addresses[index]), value, self.block_bytes)
            cells[index][0] = value

    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        table, cells = self._draw(data)
        positions = data.draw(st.integers(0, len(cells) * BLOCK))
        copies = [content.copy() for content in table.contents(positions)]
        count = -(-positions // BLOCK)
        assert [block.nbytes for block in copies] == [self.block_bytes] * count
        self.copies.append(([cell[0] for cell in cells[:count]], copies))

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        table, cells = self._draw(data)
        values, copies = data.draw(st.sampled_from(self.copies))
        own = table.own_contents(0, len(copies) * BLOCK)
        for content, saved in zip(own, copies, strict=True):
            content[:] = saved
        self._make_own(cells, 0, len(values) * BLOCK)
        for cell, value in zip(cells, values, strict=False):
            cell[0] = value

    @invariant()
    def holds_what_was_written(self) -> None:
        if not hasattr(self, "arena"):
            return
        places: dict[int, int] = {}
        for table, cells in self.tables:
            assert len(table) == len(cells)
            assert not table.addresses[len(cells) :].any()
            for place, cell in zip(table.addresses.tolist(), cells, strict=False):
                assert place % 64 == 0
                assert places.setdefault(place, id(cell)) == id(cell)  # shared where it should be
                assert set(ctypes.string_at(place, self.block_bytes)) == {cell[0]}
        distinct = {id(cell) for _, cells in self.tables for cell in cells}
        assert len(places) == len(distinct)
        assert self.arena.size_bytes == len(distinct) * (self.block_bytes + 64)


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def full_arena() -> tuple[KvArena, BlockTable, BlockTable]:
    """Two blocks of two, one of them in both tables."""
    arena = KvArena(1, 1, 16, BLOCK, "f16", num_texts=2)
    one = arena.table()
    one.reserve(0, BLOCK)
    arena.table().reserve(0, BLOCK)
    return arena, one, one.fork(BLOCK)


def test_no_more_blocks_than_planned() -> None:
    arena, one, fork = full_arena()
    for ask in (lambda: arena.table().reserve(0, 1), lambda: fork.reserve(0, 1)):
        with pytest.raises(BudgetError, match="all 2 blocks of 256 positions"):
            ask()
    assert arena.num_blocks == 2 and fork.addresses[0] == one.addresses[0]


def test_room_is_made_by_who_keeps_idle_texts() -> None:
    """An owner that gives up what it shared spares the other a copy."""
    arena, one, fork = full_arena()
    place = int(fork.addresses[0])
    arena.make_room = lambda: one.release(0) == 0
    fork.reserve(0, 1)
    assert (arena.num_blocks, int(fork.addresses[0])) == (2, place)
    arena.make_room = lambda: fork.release(0) > 0
    arena.table().reserve(0, 1)
    assert arena.num_blocks == 2


def test_memory_refused_by_the_system_is_taken_from_idle_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena, one, _ = full_arena()
    arena.most_blocks = 4
    real, refusals = np.zeros, iter([True, False])

    def zeros(*arguments: object, **options: object) -> object:
        if next(refusals, False):
            raise MemoryError
        return real(*arguments, **options)  # type: ignore[call-overload]

    table = arena.table()
    monkeypatch.setattr(np, "zeros", zeros)
    arena.make_room = lambda: one.release(0) == 0
    table.reserve(0, 1)
    refusals = iter([True, True])
    arena.make_room = lambda: False
    with pytest.raises(MemoryError):
        arena.allocate()
    assert arena.num_blocks == 3
