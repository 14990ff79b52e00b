"""What a forward pass costs by its number of nodes, measured once and kept true by live timings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import BackendError

_LEVEL_RATE = 0.1
"""How fast the whole curve follows a busier machine or a longer context."""
_SHAPE_RATE = 0.04
"""How fast one size departs from the others: slower, so that load does not look like shape."""
_LARGEST_SURPRISE = 0.7
"""A timing counts as at most this many e-folds off: one page fault must not bend the curve."""


class CostCurve:
    """Seconds of a forward pass over n nodes, never falling in n.

    Made from a few measured sizes; between them it is linear, beyond the last it goes on at the
    mean slope. Raises BackendError when the measurements are empty or not positive.
    """

    def __init__(self, measured: Mapping[int, float], max_nodes: int | None = None) -> None:
        points = sorted(measured.items())
        if not points or points[0][0] < 1 or not all(0 < t < math.inf for _, t in points):
            raise BackendError(
                "a cost curve needs measured passes, each of one node or more and of more than "
                "zero seconds"
            )
        sizes = np.array([size for size, _ in points], np.float64)
        seconds = np.maximum.accumulate(np.array([t for _, t in points], np.float64))
        most = max_nodes or int(sizes[-1])
        nodes = np.arange(1, most + 1, dtype=np.float64)
        self._base = np.interp(nodes, sizes, seconds)
        if len(points) > 1:
            slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        else:
            slope = seconds[0]  # nothing is known of more nodes: let them cost separate passes
        self._base += np.maximum(nodes - sizes[-1], 0.0) * slope
        self._level = 0.0
        self._shape = np.zeros(most)
        self._seconds = self._base.copy()

    @property
    def max_nodes(self) -> int:
        """The largest size the curve answers for."""
        return len(self._base)

    @property
    def table(self) -> NDArray[np.float64]:
        """Seconds by number of nodes, `table[n - 1]`, never falling; `update` changes it."""
        return self._seconds

    def seconds(self, num_nodes: int) -> float:
        """Seconds of one pass over `num_nodes` nodes, root included; sizes beyond the last cost
        what the last does.
        """
        return float(self._seconds[min(max(num_nodes, 1), self.max_nodes) - 1])

    def update(self, num_nodes: int, seconds: float) -> None:
        """Take a live timing into account: the whole curve moves quickly, this size against the
        others slowly.
        """
        if not 0.0 < seconds < math.inf:
            return
        index = min(max(num_nodes, 1), self.max_nodes) - 1
        surprise = math.log(seconds / self._seconds[index])
        surprise = min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        self._level += _LEVEL_RATE * surprise
        # Neighbouring sizes share their kernels, so they share what is learnt, fading with
        # distance.
        distance = np.abs(np.arange(self.max_nodes) - index)
        self._shape += _SHAPE_RATE * surprise * np.maximum(0.0, 1.0 - distance / 4.0)
        self._shape -= self._shape[0]  # a plain pass is the yardstick
        np.maximum.accumulate(self._base * np.exp(self._level + self._shape), out=self._seconds)
