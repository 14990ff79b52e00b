"""Experts that are held in memory, as many as fit; the others are read when rows go to them.

A pass asks for the experts of a layer that it lacks, and waits. Each takes the place of the one
that was used least of late, and among these of that whose layer comes last from here on: a prompt
that goes through all experts of all layers would find none of them with any other rule.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.streaming.pass_lock import PassLock
from edgespec.backends.native.streaming.read_threads import Piece
from edgespec.backends.native.weights import PackedMatrix, Weights, rows_at_once
from edgespec.memory.plan.state_layout import round_up
from edgespec.memory.plan.streaming import LINE, READ_BYTES, experts_of
from edgespec.models.layers import Matrix, Moe
from edgespec.models.spec import ModelSpec

_MOST_USES = 64
"""Where an expert has as many, all of its layer are halved: what was used long ago fades."""


class ExpertStore:
    """Slots for experts of all layers, who is in them, and the next piece of those to be read."""

    def __init__(self, spec: ModelSpec, weights: Weights, slots: int, memory: NDArray[np.uint8]):
        self._weights = weights
        self._layers = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, Moe)]
        self._numbers = {id(own): number for number, own in enumerate(self._layers)}
        size = max(sum(map(self._expert_bytes, experts_of(own))) for own in self._layers)
        self._slots = memory[: slots * round_up(size, LINE)].reshape(slots, -1)
        most = max(own.experts for own in self._layers)
        self.held = [np.zeros((own.experts, 3, 2), np.int64) for own in self._layers]
        """Addresses of the weights and scales of gate, up and down; zeros while on disk."""
        self.used = np.zeros((len(self._layers), most), np.int64)
        self._owners = np.full((slots, 2), -1, np.int64)
        """Layer and expert of each slot."""
        self.asking = np.zeros(1, np.int64)
        """The layer that a pass asks for."""
        self.read: NDArray[np.int64] = np.zeros(0, np.int64)
        self.num_read: NDArray[np.int64] = np.zeros(1, np.int64)
        """The experts that rows go to, and how many these are: the pass's own words."""
        self._lock = threading.Lock()
        self.locks = np.zeros(2, np.int64)
        """Addresses: asked, came."""
        self.reset()

    def reset(self) -> None:
        """Locks that nobody else knows of."""
        self._asked, self._came = PassLock(), PassLock()
        self.locks[:] = self._asked.address, self._came.address
        self._pieces: deque[Piece] = deque()
        self._left = 0
        self._is_over = False

    def number(self, own: Moe) -> int:
        """Which of the layers that mix experts this is."""
        return self._numbers[id(own)]

    def next(self) -> Piece | None:
        """The next piece of what a pass asked for, or of what one will ask for."""
        while not self._pieces:
            if not self._is_over:
                self._asked.wait()
            if self._is_over:
                return None
            self._ask(int(self.asking[0]))
        return self._pieces.popleft()

    def stop(self) -> None:
        self._is_over = True
        self._asked.open_for_good()

    def _ask(self, layer: int) -> None:
        """Let the experts come that a layer's rows go to and that are not in memory."""
        read, held = self.read[: self.num_read[0]], self.held[layer]
        missing = read[held[read, 0, 0] == 0]
        used = self.used[layer]
        if used.max() > _MOST_USES:
            used >>= 1
        slots = self._least_used(layer, read, len(missing))
        for slot, expert in zip(slots, missing, strict=True):
            before, other = self._owners[slot]
            if before >= 0:
                self.held[before][other] = 0
            self._owners[slot] = layer, expert
            self._bring(layer, int(expert), int(slot))
        self._left = len(self._pieces)

    def _least_used(self, layer: int, read: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Slots that are free, or whose experts are missed least; never those that rows go to."""
        layers, experts = self._owners.T
        distance = (layers - layer - 1) % len(self._layers)
        worth = self.used[layers, experts] * (len(self._layers) + 1) - distance
        worth[layers < 0] = -len(self._layers) - 1
        worth[(layers == layer) & np.isin(experts, read)] = np.iinfo(np.int64).max
        return np.argsort(worth, kind="stable")[:count]

    def _bring(self, layer: int, expert: int, slot: int) -> None:
        begin = 0
        for matrix, where in zip(
            experts_of(self._layers[layer]), self.held[layer][expert], strict=True
        ):
            form, size = self._weights.packed(matrix).format, self._expert_bytes(matrix)
            room = self._slots[slot, begin : begin + size]
            tiles = PackedMatrix.within(form, matrix.rows, matrix.columns, room)
            where[:] = tiles.places[:2]
            begin += size
            step = rows_at_once(form.type, matrix.columns, READ_BYTES)
            offset = expert * matrix.rows
            for first in range(0, matrix.rows, step):
                last = min(first + step, matrix.rows)
                rows = offset + first, offset + last
                self._pieces.append(Piece(matrix, *rows, tiles, offset, self._done))

    def _done(self) -> None:
        with self._lock:
            self._left -= 1
            is_there = self._left == 0
        if is_there:
            self._came.open()

    def _expert_bytes(self, matrix: Matrix) -> int:
        form = self._weights.packed(matrix).format
        return matrix.rows // 16 * sum(form.tile_bytes(matrix.columns))
