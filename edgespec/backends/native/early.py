"""Nodes whose first layers were computed before the pass that verifies them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels.early_nodes import match_nodes


class EarlyStates:
    """Residual streams of early nodes of all texts, [max_nodes, dim] f32, allocated once."""

    def __init__(self, max_nodes: int, dim: int) -> None:
        self.rows = np.zeros((max_nodes, dim), np.float32)
        self.left: NDArray[np.float32] | None = None
        """[max_nodes, taps * dim]: what these nodes left for a draft head, if there is one."""
        self.free = list(range(max_nodes))

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes + (0 if self.left is None else self.left.nbytes)


class EarlyNodes:
    """One text's tree of nodes that have passed `layer` layers, numbered as they came.

    A node's number is its slot past the committed positions, so what the layers wrote to the KV
    arena stays where it is when other nodes join for the rest of the layers.
    """

    def __init__(self, layer: int, states: EarlyStates) -> None:
        self.layer = layer
        self.seconds = 0.0
        """What the root took: a pass over it need not spend that again."""
        self.slots: NDArray[np.int32] = np.zeros(0, np.int32)
        """Of the nodes of the last pass that went on from these."""
        self._states = states
        self._nodes = np.zeros((3, len(states.rows)), np.int32)
        """Tokens, parents, and rows of their states."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __del__(self) -> None:
        self._states.free.extend(self._nodes[2, : self._count].tolist())

    def add(
        self,
        token: int,
        parent: int,
        stream: NDArray[np.float32],
        left: NDArray[np.float32] | None = None,
    ) -> None:
        """Number a node, and keep its stream [dim] and what it left; there must be a row for it."""
        row = self._states.free.pop()
        self._nodes[:, self._count] = token, parent, row
        self._states.rows[row] = stream
        if self._states.left is not None:
            self._states.left[row] = left
        self._count += 1

    def parents(self, more: list[int]) -> NDArray[np.int16]:
        """Of all nodes [n] by number, and then of those that are to come."""
        return np.array([*self._nodes[1, : self._count], *more], np.int16)

    def match(
        self, tokens: NDArray[np.int32], parents: NDArray[np.int16]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """For each node of a tree its slot, a new one if it is none of these; and which are new."""
        slots, new = np.empty((2, len(tokens)), np.int32)
        num_new = match_nodes(tokens, parents, self._nodes, self._count, slots, new)
        return slots, new[:num_new]

    def load(
        self,
        slots: NDArray[np.int32],
        streams: NDArray[np.float32],
        left: NDArray[np.float32] | None = None,
    ) -> None:
        """Put what the nodes with these slots came to into their rows of a pass, [n, dim], and what
        they left; new ones are left alone.
        """
        kept = self._states.left
        for node, slot in enumerate(slots.tolist()):
            if slot < self._count:
                row = self._nodes[2, slot]
                streams[node] = self._states.rows[row]
                if left is not None and kept is not None:
                    left[node] = kept[row]

    def store(self, streams: NDArray[np.float32], left: NDArray[np.float32] | None = None) -> None:
        """Keep what all nodes came to, [n, dim], and what they left."""
        rows = self._nodes[2, : self._count]
        self._states.rows[rows] = streams[: self._count]
        if left is not None and self._states.left is not None:
            self._states.left[rows] = left[: self._count]
