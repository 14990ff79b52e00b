"""Matrices that every pass reads from disk in the same order, through a ring of memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels.matmul.tile import TILE_ROWS
from edgespec.backends.native.kernels.stages import streamed
from edgespec.backends.native.stage_maker import StageMaker, Stages
from edgespec.backends.native.streaming.pass_lock import PassLock
from edgespec.backends.native.streaming.read_threads import Piece
from edgespec.backends.native.weights import PackedMatrix, Weights, rows_at_once
from edgespec.memory.plan.state_layout import round_up
from edgespec.memory.plan.streaming import LINE, READ_BYTES
from edgespec.models.layers import Matrix
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class _Held:
    """Which matrix has a part of the ring."""

    number: int
    begin: int
    end: int


class MatrixRing:
    """Fills the ring pass after pass, as far as there is room; the next pass's first matrices come
    while the last one's tokens are chosen.

    Stages take a matrix by a lock that is open when it is there, and give back its room by another.
    """

    def __init__(self, weights: Weights, matrices: Sequence[Matrix], memory: NDArray[np.uint8]):
        self._weights, self._memory = weights, memory
        self._matrices = set(matrices)
        self._numbers: dict[Matrix, int] = {}
        """In the order in which stages read them."""
        self._order: list[Matrix] = []
        count = len(matrices)
        self._there, self._free = np.zeros(count, np.int64), np.zeros(count, np.int64)
        """Addresses of locks."""
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begin with an empty ring, and locks that nobody else knows of."""
        count = len(self._there)
        self._locks = [[PassLock() for _ in range(count)] for _ in range(2)]
        for addresses, locks in zip((self._there, self._free), self._locks, strict=True):
            addresses[:] = [lock.address for lock in locks]
        self._held: deque[_Held] = deque()
        self._pieces: deque[Piece] = deque()
        self._left = [0] * count
        self._next = 0
        self._is_over = False

    def around(self, stages: Stages, maker: StageMaker) -> Stages:
        """A layer's stages, with those between them that wait for matrices and give them back."""
        places = {self._weights.place(matrix): matrix for matrix in self._matrices}
        read = [[places[value] for value in stage.values() if value in places] for stage in stages]
        first: dict[Matrix, int] = {}
        last: dict[Matrix, int] = {}
        for number, matrices in enumerate(read):
            for matrix in matrices:
                first.setdefault(matrix, number)
                last[matrix] = number
        done: Stages = []
        for number, stage in enumerate(stages):
            coming = [matrix for matrix in first if first[matrix] == number]
            for matrix in coming:
                self._numbers.setdefault(matrix, len(self._numbers))
            done += self._locking(streamed.take, self._there, coming, maker)
            done.append(stage)
            going = [matrix for matrix in last if last[matrix] == number]
            done += self._locking(streamed.give, self._free, going, maker)
        self._order = list(self._numbers)
        return done

    def next(self) -> Piece | None:
        """The next piece of the matrix at hand, or of the next one as soon as there is room."""
        if not self._pieces:
            number = self._next
            matrix = self._order[number]
            packed = self._weights.packed(matrix)
            form, num_rows = packed.format, packed.num_rows
            num_tiles = -(-num_rows // TILE_ROWS)
            size = num_tiles * sum(form.tile_bytes(matrix.columns))
            begin = self._room(size)
            if begin is None:
                return None
            end = begin + round_up(size, LINE)
            self._held.append(_Held(number, begin, end))
            tiles = PackedMatrix.within(form, num_rows, matrix.columns, self._memory[begin:end])
            self._weights.move(matrix, tiles)
            step = rows_at_once(form.type, matrix.columns, READ_BYTES)
            done = partial(self._done, number)
            for first in range(0, num_rows, step):
                last = min(first + step, num_rows)
                self._pieces.append(Piece(matrix, first, last, tiles, 0, done))
            self._left[number] = len(self._pieces)
            self._next = (number + 1) % len(self._order)
        return self._pieces.popleft()

    def stop(self) -> None:
        self._is_over = True
        for lock in self._locks[1]:
            lock.open_for_good()

    def _room(self, size: int) -> int | None:
        """Where so many bytes in a row are free; waits for stages to give them back, and is None
        when all is over.
        """
        size = round_up(size, LINE)
        while not self._is_over:
            if not self._held:
                return 0
            tail, head = self._held[0].begin, self._held[-1].end
            limit = len(self._memory) if head > tail else tail
            if limit - head >= size:
                return head
            if head > tail and tail >= size:
                return 0
            self._locks[1][self._held[0].number].wait()
            self._held.popleft()
        return None

    def _done(self, number: int) -> None:
        with self._lock:
            self._left[number] -= 1
            is_there = self._left[number] == 0
        if is_there:
            self._locks[0][number].open()

    def _locking(
        self,
        entry: object,
        addresses: NDArray[np.int64],
        matrices: list[Matrix],
        maker: StageMaker,
    ) -> Stages:
        """Stages that take or give back matrices: one for each run of numbers."""
        numbers = sorted(self._numbers[matrix] for matrix in matrices)
        stages: Stages = []
        while numbers:
            begin = numbers[0]
            count = next(i for i in range(len(numbers) + 1) if begin + i not in numbers)
            where = addresses[begin:].ctypes.data
            operands = {streamed.LOCKS: where, streamed.COUNT: count}
            stages.append(maker.stage(entry, operands))  # type: ignore[arg-type]
            numbers = numbers[count:]
        return stages
