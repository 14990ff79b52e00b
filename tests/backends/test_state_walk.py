"""The walk over a tree's states: every node reads what its ancestors' steps have made, in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.backends.native.kernels.recurrent import walk
from edgespec.backends.native.kernels.recurrent.words import (
    ALL_PENDING,
    COMMITTED,
    NOTHING,
)
from edgespec.memory.plan.state_layout import num_buffers

PENDING = "pending"
State = tuple[object, ...]


@st.composite
def _trees(draw: st.DrawFn) -> list[int]:
    num_nodes = draw(st.integers(1, 64))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, num_nodes))]


def _instructions(parents: list[int], first: int, num_pending: int) -> list[list[int]]:
    out = np.full((len(parents) + 1, 4), 77, np.int64)
    scratch = np.zeros((walk.SCRATCH_ROWS, len(parents)), np.int64)
    nodes = np.array(parents, np.int16)
    count = walk.plan_tree(nodes, first, num_pending, out, 0, scratch)
    assert np.all(out[count:] == 77)
    found: list[list[int]] = out[:count].tolist()
    return found


def _follow(instructions: list[list[int]], num_buffers: int) -> tuple[dict[int, State], State]:
    """What each row reads, as the steps that its state has gone through; and the own state."""
    states: dict[int, State] = {COMMITTED: ()}
    seen: dict[int, State] = {}
    for applied, source, target, reader in instructions:
        assert COMMITTED <= target < num_buffers
        if applied == NOTHING:
            assert source == target
        else:
            step = PENDING if applied == ALL_PENDING else applied
            states[target] = (*states[source], step)
        if reader != NOTHING:
            assert reader not in seen
            seen[reader] = states[target]
    return seen, states[COMMITTED]


@pytest.mark.parametrize("num_pending", [0, 2])
@settings(max_examples=300, deadline=None)
@given(parents=_trees(), first=st.integers(0, 5))
def test_trees(parents: list[int], first: int, num_pending: int) -> None:
    before: State = (PENDING,) if num_pending else ()
    instructions = _instructions(parents, first, num_pending)
    seen, own = _follow(instructions, num_buffers(len(parents)))
    expected: dict[int, State] = {}
    for node, parent in enumerate(parents):
        path = before if parent < 0 else (*expected[first + parent], first + parent)
        expected[first + node] = path
    assert seen == expected
    assert own == before
    inner = {parent for parent in parents if parent >= 0}
    made = [applied for applied, *_ in instructions if applied >= 0]
    assert sorted(made) == sorted(first + node for node in inner)


@pytest.mark.parametrize("num_pending", [0, 3])
@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_chains_go_into_the_state(num_rows: int, num_pending: int) -> None:
    out = np.zeros((num_rows + 1, 4), np.int64)
    count = walk.plan_chain(num_rows, 2, num_pending, out, 0)
    seen, own = _follow(out[:count].tolist(), 0)
    before: State = (PENDING,) if num_pending else ()
    assert seen == {2 + row: (*before, *range(2, 2 + row)) for row in range(num_rows)}
    assert own == (*before, *range(2, 2 + num_rows))
