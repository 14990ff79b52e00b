"""How often proposed tokens of a kind were right, as a decayed ratio drawn to a prior.

A kind is whatever a drafter thinks predicts acceptance: a match length, an order of context, a
rank. The tables are float64 [kinds, 4]: decayed hits, decayed shares, the prior, the rate itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import inner_kernel

HITS, SHARES, PRIOR, RATE = 0, 1, 2, 3
_PRIOR_WEIGHT = 6.0
_DECAY = 0.98
_CEILING = 0.98


def new_rates(priors: Sequence[float]) -> NDArray[np.float64]:
    """A table in which nothing was seen yet: every rate is its prior."""
    table = np.zeros((len(priors), 4), np.float64)
    table[:, PRIOR] = priors
    table[:, RATE] = priors
    return table


@inner_kernel
def learn(table: NDArray[np.float64], kind: int, share: float, hit: bool) -> None:
    """One proposed token was checked: `share` is the part that its drafter gave it among the
    tokens it thought possible, so that a rate times a share is a probability.
    """
    row = table[kind]
    row[HITS] = row[HITS] * _DECAY + (1.0 if hit else 0.0)
    row[SHARES] = row[SHARES] * _DECAY + share
    hits = row[HITS] + _PRIOR_WEIGHT * row[PRIOR]
    row[RATE] = min(_CEILING, hits / (row[SHARES] + _PRIOR_WEIGHT))
