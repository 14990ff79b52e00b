"""What nodes of a mixture of experts cost: a pass reads the experts that its nodes choose.

A pass over n nodes takes a(n) + b x experts. How many experts further nodes add depends on the
text: neighbours share many. As draws at random, m nodes read X (1 - (1 - A / X)^m) of the X experts
of all layers, where one reads A; n nodes of a text count as m = 1 + (n - 1) x new of these, and
`new` follows what passes read. ("Cascade: Utility-Driven Speculative Decoding for Mixture-of-
Experts" weighs speculation by the same rise of a pass' price.)

The price b of an expert is what passes took that differ in their experts and not in their nodes: at
the start over one token again and again and over as many different ones, later over all that come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.backends.passes import TokenTree
from edgespec.models.layers import Moe

_TRIALS = 5
_MEAN_RATE = 0.05
"""How fast the mean of experts and seconds of a size follows."""
_NEW_RATE = 0.05
_FADING = 0.995
_PRIOR_PASSES = 32.0
"""Passes that the first price weighs, with a tenth more or fewer experts than usual each."""


class ExpertPrices:
    """Seconds of passes by nodes and experts; `base` is filled with those by nodes alone."""

    def __init__(
        self,
        base: NDArray[np.float64],
        experts: NDArray[np.float64],
        routed: int,
        active: int,
        expert_s: float,
    ) -> None:
        """`base` f64 [sizes] took passes that read so many `experts` f64 [sizes]; a token reads
        `active` of `routed`, all layers together, and each is said to take `expert_s`.
        """
        self._measured, self._read = base.copy(), experts
        self._routed, self._active = float(routed), float(active)
        self._first_s = self.expert_s = expert_s
        """Seconds of an expert."""
        self.new = 1.0
        """How much of a token chosen at random a further node is."""
        self._means = np.zeros((len(base), 3))
        """By size: experts and seconds beyond what was said, in the mean, and how many passes."""
        self._square = _PRIOR_PASSES * (0.1 * experts[0]) ** 2
        self._product = 0.0
        self.fill(base)

    def expected(self) -> NDArray[np.float64]:
        """Experts of passes by size, f64 [sizes], from what was read lately."""
        draws = 1.0 + np.arange(len(self._measured)) * self.new
        unread = np.power(1.0 - self._active / self._routed, draws, dtype=np.float64)
        return np.asarray(self._routed * (1.0 - unread), np.float64)

    def seconds(self, index: int, experts: float) -> float:
        """What a pass over index + 1 nodes that reads so many experts takes."""
        more = self.expert_s * (experts - self._read[index])
        return float(max(self._measured[index] + more, 0.5 * self._measured[0]))

    def fill(self, base: NDArray[np.float64]) -> None:
        """Write what passes take by nodes alone; more nodes never take less."""
        more = self.expert_s * (self.expected() - self._read)
        np.maximum(self._measured + more, self._measured[0], out=base)
        np.maximum.accumulate(base, out=base)

    def learn(self, index: int, experts: float, seconds: float) -> None:
        """A pass over index + 1 nodes read so many experts, and would have taken so long when the
        curve was measured.
        """
        if index and experts < self._routed:
            share = self._active / self._routed
            draws = math.log(1.0 - experts / self._routed) / math.log(1.0 - share)
            new = min(max((draws - 1.0) / index, 0.0), 1.5)
            self.new += _NEW_RATE * (new - self.new)
        beyond = seconds - self._measured[index] - self._first_s * (experts - self._read[index])
        mean = self._means[index]
        mean[2] += 1.0
        rate = max(1.0 / mean[2], _MEAN_RATE)
        more, longer = experts - mean[0], beyond - mean[1]
        mean[:2] += rate * more, rate * longer
        if mean[2] > 1.0:
            prior = _PRIOR_PASSES * (0.1 * self._read[0]) ** 2
            self._square = prior + _FADING * (self._square - prior) + more * more
            self._product = _FADING * self._product + more * longer
            self.expert_s = max(self._first_s + self._product / self._square, 0.0)

    @classmethod
    def measured(
        cls, target: Target, curve: Mapping[int, float], base: NDArray[np.float64]
    ) -> Self | None:
        """Of a target with nothing committed, whose passes take `curve`, `base` between its sizes;
        None where no experts mix or the backend does not say which it read.
        """
        mixing = [layer.ffn for layer in target.spec.layers if isinstance(layer.ffn, Moe)]
        if not mixing or not _pass(target, 1, different=True)[1]:
            return None
        sizes = [size for size in sorted(curve) if size <= min(len(base), target.max_nodes)]
        read = [_pass(target, size, different=True)[1] for size in sizes]
        experts = np.interp(np.arange(1, len(base) + 1), sizes, read)
        routed, active = sum(each.experts for each in mixing), sum(each.active for each in mixing)
        largest = min(sizes[-1], 8)
        fewer, more = (
            [_pass(target, largest, different=different) for _ in range(_TRIALS)]
            for different in (False, True)
        )
        added = more[0][1] - fewer[0][1]
        took = min(seconds for seconds, _ in more) - min(seconds for seconds, _ in fewer)
        expert_s = max(took / added, 0.0) if added > 0 else 0.0
        return cls(base, experts, routed, active, expert_s)


def _pass(target: Target, num_nodes: int, *, different: bool) -> tuple[float, int]:
    """Seconds and experts of a pass over a chain of different tokens, or of one again and again;
    nothing of it stays.
    """
    step, size = (7, target.spec.vocab_size) if different else (0, 1)
    tree = TokenTree.chain([step * place % size for place in range(num_nodes)])
    start = time.perf_counter()
    experts = target.own.forward(tree).experts
    seconds = time.perf_counter() - start
    target.own.expect(())
    return seconds, experts
