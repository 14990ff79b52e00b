"""States of sequences: shared like blocks of keys and values, copied before they are written to.

A sequence's state holds its first `settled` positions. What is kept of the nodes committed after
those goes into it in the next pass. States set aside at intervals are where it can return to.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import BackendError, BudgetError
from edgespec.memory.plan.state_layout import CHECKPOINT_EVERY
from edgespec.system.size import format_size

ALIGNMENT = 64


class State:
    """All layers' states at one position; `parity` says which tails are read."""

    __slots__ = ("_memory", "address", "data", "num_owners", "parity")

    def __init__(self, num_bytes: int) -> None:
        self._memory = np.zeros(num_bytes + ALIGNMENT, np.uint8)
        start = -self._memory.ctypes.data % ALIGNMENT
        self.data: NDArray[np.uint8] = self._memory[start : start + num_bytes]
        self.address = int(self.data.ctypes.data)
        self.num_owners = 1
        self.parity = 0

    def fill(self, data: NDArray[np.uint8] | int, parity: int) -> None:
        """Hold what another does, or zeros."""
        self.data[:] = data
        self.parity = parity


class StatePool:
    """At most `most` states of so many bytes, up to `checkpoints` of them set aside for each
    sequence; those given back are used again.
    """

    def __init__(self, num_bytes: int, most: int, checkpoints: int) -> None:
        self._num_bytes, self._most, self.checkpoints = num_bytes, most, checkpoints
        self._free: list[State] = []
        self.num_states = 0
        """Allocated, in use or not."""
        self.sequences: weakref.WeakSet[SequenceStates] = weakref.WeakSet()
        self.make_room: Callable[[], bool] = lambda: False
        """Gives up what an idle sequence holds; False when there is none."""

    @property
    def size_bytes(self) -> int:
        return self.num_states * (self._num_bytes + ALIGNMENT)

    def zeros(self) -> State:
        """The state before any position; raises BudgetError when all that were planned are in
        use.
        """
        state = self.take()
        state.fill(0, 0)
        return state

    def owned(self, state: State) -> State:
        """What may be written to instead of a state: itself, or a copy where others hold it."""
        while state.num_owners > 1 and self._is_full and self._give_up():
            pass  # perhaps it was the other owner that gave it up
        if state.num_owners == 1:
            return state
        copy = self.take()
        copy.fill(state.data, state.parity)
        self.free(state)
        return copy

    def free(self, state: State) -> None:
        """One owner fewer."""
        state.num_owners -= 1
        if not state.num_owners:
            self._free.append(state)

    def take(self) -> State:
        """A state that holds anything; errors as `zeros`."""
        while self._is_full:
            if not self._give_up():
                raise BudgetError(
                    f"all {self._most} states of {format_size(self._num_bytes)} that were planned "
                    "are in use; end a reply, or load with more sequences"
                )
        if not self._free:
            self.num_states += 1
            return State(self._num_bytes)
        state = self._free.pop()
        state.num_owners = 1
        return state

    def give_back(self) -> None:
        """Free the states that nobody uses."""
        self.num_states -= len(self._free)
        self._free.clear()

    @property
    def _is_full(self) -> bool:
        return not self._free and self.num_states >= self._most

    def _give_up(self) -> bool:
        """A checkpoint without which none are too far apart, or else an idle sequence, which can
        come back with all of its own, or any checkpoint; False when there is nothing.
        """
        return self._drop_checkpoint(False) or self.make_room() or self._drop_checkpoint(True)

    def _drop_checkpoint(self, leaves_a_gap: bool) -> bool:
        """Give up the checkpoint that is missed least, of all sequences."""
        owners = [own for own in self.sequences if own.checkpoints]
        found = [(*own.least_missed(own.length), own) for own in owners]
        found = [each for each in found if leaves_a_gap or not each[0][0]]
        if not found:
            return False
        _, index, own = min(found, key=lambda each: each[0])
        own.drop(index)
        return True


class SequenceStates:
    """What one sequence holds: a state, checkpoints, and slots of what is kept of nodes."""

    def __init__(self, pool: StatePool, kept: KeptRows) -> None:
        self._pool, self._kept = pool, kept
        self.state: State | None = None
        """None before the first pass."""
        self.settled = 0
        """Positions in the state."""
        self.pending: list[int] = []
        """Slots of the nodes committed after these, in order."""
        self.nodes: list[int] = []
        """Slots of the nodes of the last pass, until one of their paths is committed."""
        self.checkpoints: list[tuple[int, State]] = []
        """Positions, ascending, and states that nobody writes to."""
        self.read_chain = False
        """The last pass was over a chain: where a prompt ends, another is likely to leave it."""
        pool.sequences.add(self)

    def __del__(self) -> None:
        self.reset()

    @property
    def length(self) -> int:
        return self.settled + len(self.pending)

    def own(self) -> State:
        """The state, to be written to."""
        self.state = self._pool.zeros() if self.state is None else self._pool.owned(self.state)
        return self.state

    def commit(self, path: Sequence[int]) -> None:
        """Let these nodes of the last pass go into the state some time, and drop the rest."""
        chosen = [self.nodes[node] for node in path]
        self._kept.free(set(self.nodes).difference(chosen))
        self.pending += chosen
        self.nodes = []

    def forget_nodes(self) -> None:
        """Nothing of the last pass is committed."""
        self._kept.free(self.nodes)
        self.nodes = []

    def took(self, num_pending: int, num_rows: int = 0) -> None:
        """The state has taken so many of the pending nodes, and rows of a chain after them."""
        assert self.state is not None
        self.read_chain = num_rows > 0
        if num_pending or num_rows:
            self.state.parity ^= 1
        self._kept.free(self.pending[:num_pending])
        del self.pending[:num_pending]
        self.settled += num_pending + num_rows

    def before_checkpoint(self) -> int:
        """How many of the pending nodes come before the next checkpoint is due; 0 if none is."""
        due = self.settled // CHECKPOINT_EVERY * CHECKPOINT_EVERY + CHECKPOINT_EVERY
        return due - self.settled if due <= self.length else 0

    def set_aside(self, least: int = 1) -> None:
        """Keep the state as it is now, if the last kept is so many positions before."""
        last = self.checkpoints[-1][0] if self.checkpoints else 0
        if self.settled < last + least or self.state is None:
            return
        self.state.num_owners += 1
        self.checkpoints.append((self.settled, self.state))
        if len(self.checkpoints) > self._pool.checkpoints:
            self.drop(self.least_missed()[1])

    def least_missed(self, end: float = math.inf) -> tuple[tuple[bool, float], int]:
        """What it costs to be without a checkpoint, and which costs least: whether its neighbours
        are too far apart without it, where the text ends at `end`, and positions to be read again,
        less so the farther back they are.
        """
        positions = [0, *(position for position, _ in self.checkpoints)]
        costs = [
            (
                after - before > CHECKPOINT_EVERY,
                (here - before) / (self.length - here + CHECKPOINT_EVERY),
            )
            for before, here, after in zip(
                positions, positions[1:], [*positions[2:], end], strict=False
            )
        ]
        return min((cost, index) for index, cost in enumerate(costs))

    def drop(self, index: int) -> None:
        """Give up a checkpoint."""
        self._pool.free(self.checkpoints.pop(index)[1])

    def rewindable(self, length: int) -> int:
        """The last position up to `length` that it can return to."""
        if length >= self.settled:
            return min(length, self.length)
        return max((at for at, _ in self.checkpoints if at <= length), default=0)

    def truncate(self, length: int) -> None:
        """Return to a position that `rewindable` names."""
        if self.rewindable(length) != length:
            raise BackendError(
                f"a sequence with a state cannot return to {length} positions, but to "
                f"{self.rewindable(length)}; ask `rewindable` first"
            )
        self.forget_nodes()
        if length < self.settled:
            self._return_to(length)
        self._kept.free(self.pending[length - self.settled :])
        del self.pending[length - self.settled :]

    def _return_to(self, length: int) -> None:
        assert self.state is not None
        self._kept.free(self.pending)
        self.pending = []
        self._pool.free(self.state)
        while self.checkpoints and self.checkpoints[-1][0] > length:
            self.drop(len(self.checkpoints) - 1)
        self.state = self.checkpoints[-1][1] if length else None
        if self.state is not None:
            self.state.num_owners += 1
        self.settled = length

    def fork(self, length: int) -> SequenceStates:
        """Another that begins like this one, whose state must hold `length` positions, or a
        checkpoint must.
        """
        other = SequenceStates(self._pool, self._kept)
        kept = [(at, state) for at, state in self.checkpoints if at <= length]
        state = self.state if length == self.settled else kept[-1][1] if length else None
        for each in (*(own for _, own in kept), *([state] if state else [])):
            each.num_owners += 1
        other.checkpoints, other.state, other.settled = kept, state, length
        return other

    def outline(self) -> tuple[tuple[int, int], ...]:
        """Positions and parities of the checkpoints, then of the state; nothing before the first
        pass.
        """
        return tuple((at, state.parity) for at, state in self._held())

    def contents(self) -> list[NDArray[np.uint8]]:
        """Their bytes, in place."""
        return [state.data for _, state in self._held()]

    def _held(self) -> list[tuple[int, State]]:
        own = [] if self.state is None else [(self.settled, self.state)]
        return [*self.checkpoints, *own]

    def begin(self, outline: Sequence[tuple[int, int]]) -> list[NDArray[np.uint8]]:
        """Hold states like these in place of everything; returns their bytes, to be filled."""
        self.reset()
        states: list[State] = []  # none is a checkpoint, to be given up, before all are there
        try:
            for _, parity in outline:
                states.append(self._pool.take())
                states[-1].parity = parity
        except (BudgetError, MemoryError):
            for state in states:
                self._pool.free(state)
            raise
        self.checkpoints = [(at, s) for (at, _), s in zip(outline, states, strict=True)]
        if self.checkpoints:
            self.settled, self.state = self.checkpoints.pop()
        return [state.data for state in states]

    def reset(self) -> None:
        """Hold nothing."""
        self.forget_nodes()
        self._kept.free(self.pending)
        self.pending = []
        while self.checkpoints:
            self.drop(0)
        if self.state is not None:
            self._pool.free(self.state)
        self.state, self.settled = None, 0


class KeptRows:
    """Rows for what is kept of nodes, and which of them are free."""

    def __init__(self, count: int, num_bytes: int) -> None:
        self.memory = np.zeros((count, num_bytes), np.uint8)
        self._free = list(range(count - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """So many rows, which must be free."""
        return [self._free.pop() for _ in range(count)]

    def free(self, slots: Any) -> None:
        self._free.extend(slots)

    def address(self, slot: int) -> int:
        """Where a row is."""
        return int(self.memory.ctypes.data) + slot * self.memory.strides[0]


def all_pending(pool: StatePool) -> Iterator[SequenceStates]:
    """Sequences whose states have something to take."""
    return (own for own in pool.sequences if own.pending)
