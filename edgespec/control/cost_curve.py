"""What a forward pass costs by its number of nodes, measured once and kept true by live timings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import BackendError

_TIMING_VARIANCE = 0.1**2
"""Of a single pass' logarithm: timings scatter by about a tenth."""
_LEVEL_DRIFT = 0.03**2
"""Variance that the whole curve gains per pass: other programs come and go, the context grows."""
_SHAPE_DRIFT = 0.003**2
"""Variance that one size gains against the others: kernels and caches change little."""
_SHAPE_DOUBT = 0.2**2
"""Variance of the measured ratios between sizes: few trials, an empty context."""
_LARGEST_SURPRISE = 0.25
"""A timing counts as at most this many e-folds off: one page fault must not bend the curve."""
_NEIGHBOURS = 4.0
"""Sizes closer than this share what is learnt, fading with distance: they share their kernels."""


class CostCurve:
    """Seconds of a forward pass over n nodes, never falling in n.

    Made from a few measured sizes; between them it is linear, beyond the last it goes on at the
    mean slope. Live timings move it by a Kalman filter with two kinds of state, the level of the
    whole curve and the shape of each size against a plain pass: a surprise right after a plain pass
    is shape, one after many others may be a busy machine. Raises BackendError when the measurements
    are empty or not positive.
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
        self._nodes = np.arange(1, most + 1, dtype=np.float64)
        self._base = np.interp(self._nodes, sizes, seconds)
        if len(points) > 1:
            slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        else:
            slope = seconds[0]  # nothing is known of more nodes: let them cost separate passes
        self._base += np.maximum(self._nodes - sizes[-1], 0.0) * slope
        self._level = 0.0
        self._level_variance = _TIMING_VARIANCE / 4
        self._shape = np.zeros(most)
        self._shape_variance = np.full(most, _SHAPE_DOUBT)
        self._shape_variance[0] = 0.0  # a plain pass is the yardstick
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
        """Seconds of a pass over `num_nodes` nodes, root included; beyond the last, the last's."""
        return float(self._seconds[min(max(num_nodes, 1), self.max_nodes) - 1])

    def update(self, num_nodes: int, seconds: float) -> None:
        """Take a live timing into account; one that is not a positive number is ignored."""
        if not 0.0 < seconds < math.inf:
            return
        index = min(max(num_nodes, 1), self.max_nodes) - 1
        self._level_variance += _LEVEL_DRIFT
        self._shape_variance[1:] += _SHAPE_DRIFT
        expected = self._base[index] * math.exp(self._level + self._shape[index])
        surprise = math.log(seconds / expected)
        surprise = min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        shape_variance = float(self._shape_variance[index])
        variance = self._level_variance + shape_variance + _TIMING_VARIANCE
        level_gain = self._level_variance / variance
        self._level += level_gain * surprise
        self._level_variance *= 1.0 - level_gain
        if index > 0:
            closeness = np.maximum(0.0, 1.0 - np.abs(self._nodes - num_nodes) / _NEIGHBOURS)
            closeness[0] = 0.0
            shape_gain = shape_variance / variance * closeness
            self._shape += shape_gain * surprise
            self._shape_variance *= 1.0 - shape_gain
        np.maximum.accumulate(self._base * np.exp(self._level + self._shape), out=self._seconds)
