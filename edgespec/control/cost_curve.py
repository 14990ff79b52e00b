"""What a forward pass costs by its number of nodes, measured once and kept true by live timings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.control.expert_prices import ExpertPrices
from edgespec.errors import BackendError
from edgespec.system.jit import kernel

_TIMING_VARIANCE = 0.1**2
"""Of a single pass' logarithm: timings scatter by about a tenth."""
_LEVEL_DOUBT = 0.4**2
"""Of the measured level: that was another time, and perhaps beside other programs."""
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
    mean slope. A size is not believed to cost more than a larger one, nor more than two passes that
    share its nodes: such a measurement was disturbed, and would never be tried again. Live timings
    move it by a Kalman filter with two kinds of state, the level of the whole curve and the shape
    of each size against a plain pass: a surprise right after a plain pass is shape, one after many
    others may be a busy machine. Raises BackendError when the measurements are empty or not
    positive.
    """

    def __init__(self, measured: Mapping[int, float], max_nodes: int | None = None) -> None:
        points = sorted(measured.items())
        if not points or points[0][0] < 1 or not all(0 < t < math.inf for _, t in points):
            raise BackendError(
                "a cost curve needs measured passes, each of one node or more and of more than "
                "zero seconds"
            )
        sizes = np.array([size for size, _ in points], np.float64)
        # Nothing makes a pass quicker than it is: what is slower than a larger one was disturbed.
        seconds = np.minimum.accumulate([t for _, t in reversed(points)])[::-1]
        most = max_nodes or int(sizes[-1])
        nodes = np.arange(1, most + 1, dtype=np.float64)
        self._base = np.interp(nodes, sizes, seconds)
        if len(points) > 1:
            slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        else:
            slope = seconds[0]  # nothing is known of more nodes: let them cost separate passes
        self._base += np.maximum(nodes - sizes[-1], 0.0) * slope
        for size in range(2, most + 1):  # two passes could do it as well
            parts = self._base[: size - 1]
            self._base[size - 1] = min(self._base[size - 1], float(np.min(parts + parts[::-1])))
        self._bend = np.zeros(most)
        """Of the logarithms: the level first, then each size's against a plain pass, which is the
        yardstick and has none.
        """
        self._doubt = np.zeros((most + 1, most))
        """The covariance of these, and a row for `follow` to work in."""
        self._doubt[1:most, 1:] = _SHAPE_DOUBT * closeness(most - 1)
        self._doubt[0, 0] = _LEVEL_DOUBT
        self._seconds = self._base.copy()
        self._most = most
        self._points = dict(points)
        self._experts: ExpertPrices | None = None
        self.words = self._base, self._bend, self._doubt.ravel(), self._seconds
        """What `follow` takes."""

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
        if not 1 <= num_nodes <= self._most:
            num_nodes = min(max(num_nodes, 1), self._most)
        return self._seconds.item(num_nodes - 1)

    def price_experts(self, target: Target) -> None:
        """Where experts mix, let further nodes cost the experts that they add."""
        self._experts = ExpertPrices.measured(target, self._points, self._base)
        target.forget_uses()

    def update(self, num_nodes: int, seconds: float, experts: int = 0) -> None:
        """Take a live timing into account, of a pass that read so many experts; one that is not a
        positive number is ignored.
        """
        if not seconds < math.inf:
            return
        index = min(max(num_nodes, 1), self.max_nodes) - 1
        if experts and self._experts is not None:
            self._base[index] = self._experts.seconds(index, experts)
        follow(*self.words, index, float(seconds))
        if experts and self._experts is not None and seconds > 0.0:
            level = math.exp(bent(self._bend, index))
            self._experts.learn(index, experts, seconds / level)
            self._experts.fill(self._base)
            refresh(*self.words)

    def predicted(self, num_nodes: int, experts: int) -> float:
        """Seconds of a pass that reads so many experts, as far as passes have told."""
        index = min(max(num_nodes, 1), self.max_nodes) - 1
        if self._experts is None or not experts:
            return self.seconds(num_nodes)
        level = math.exp(bent(self._bend, index))
        return self._experts.seconds(index, experts) * level


def closeness(num_sizes: int) -> NDArray[np.float64]:
    """Return how far what is learnt of one size is true of another, 0 to 1 [sizes, sizes]."""
    sizes = np.arange(num_sizes)
    return np.maximum(0.0, 1.0 - abs(sizes[:, None] - sizes) / _NEIGHBOURS)


@kernel("float64[:]", "int64", result="float64")
def bent(bend: NDArray[np.float64], index: int) -> float:
    """Return the logarithm of what a size takes, to what was measured of it."""
    return bend[0] + bend[index] if index > 0 else bend[0]


@kernel("float64[:]", "float64[:]", "float64[:]", "float64[:]", "int64", "float64")
def follow(
    base: NDArray[np.float64],
    bend: NDArray[np.float64],
    doubt: NDArray[np.float64],
    table: NDArray[np.float64],
    index: int,
    seconds: float,
) -> None:
    """One step of the filter, after every pass; `doubt` is a matrix, row after row."""
    if not seconds > 0.0:
        return
    most = len(base)
    doubt[0] += _LEVEL_DRIFT
    for size in range(1, most):
        for other in range(max(1, size - int(_NEIGHBOURS) + 1), min(most, size + int(_NEIGHBOURS))):
            near = 1.0 - abs(size - other) / _NEIGHBOURS
            doubt[size * most + other] += _SHAPE_DRIFT * near
    surprise = math.log(seconds / base[index]) - bent(bend, index)
    surprise = min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
    shared = most * most
    for size in range(most):
        own = doubt[size * most + index] if index > 0 else 0.0
        doubt[shared + size] = doubt[size * most] + own
    variance = _TIMING_VARIANCE + bent(doubt[shared:], index)
    for size in range(most):
        gain = doubt[shared + size] / variance
        bend[size] += gain * surprise
        for other in range(most):
            doubt[size * most + other] -= gain * doubt[shared + other]
    refresh(base, bend, doubt, table)


@kernel("float64[:]", "float64[:]", "float64[:]", "float64[:]")
def refresh(
    base: NDArray[np.float64],
    bend: NDArray[np.float64],
    doubt: NDArray[np.float64],  # noqa: ARG001 - it takes what `follow` takes
    table: NDArray[np.float64],
) -> None:
    """Fill the table anew: its base has changed."""
    longest = 0.0
    for size in range(len(base)):
        longest = max(longest, base[size] * math.exp(bent(bend, size)))
        table[size] = longest
