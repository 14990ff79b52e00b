"""How often a continuation was right, by the length of the match that suggested it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.jit import inner_kernel

LONGEST_MATCH = 64
"""Longer matches count as this long."""
_EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_PRIORS = (0.15, 0.35, 0.5, 0.6, 0.7, 0.78, 0.84, 0.88, 0.91, 0.93, 0.95)
"""Acceptance that matches of these lengths usually reach on text that repeats itself."""
_PRIOR_WEIGHT = 6.0
_DECAY = 0.98
_CEILING = 0.98
NUM_BUCKETS = len(_EDGES)


def _bucket_table() -> NDArray[np.int32]:
    lengths = np.arange(LONGEST_MATCH + 1)
    table = np.searchsorted(np.array(_EDGES), lengths, side="right") - 1
    return np.maximum(table, 0).astype(np.int32)


BUCKETS = _bucket_table()
"""Match length, up to LONGEST_MATCH, to its bucket."""
PRIORS = np.array(_PRIORS)


@inner_kernel
def bucket_of(match: int) -> int:
    """The bucket of a match length."""
    bucket: int = BUCKETS[min(match, LONGEST_MATCH)]
    return bucket


@inner_kernel
def learn(
    table: NDArray[np.float64], rates: NDArray[np.float64], bucket: int, share: float, hit: bool
) -> None:
    """One draft token was checked: `share` is the part of the match's followers that agreed with
    it.

    table f64 [NUM_BUCKETS, 2] holds decayed hits and shares; a rate is their ratio, drawn to its
    prior.
    """
    table[bucket, 0] = table[bucket, 0] * _DECAY + (1.0 if hit else 0.0)
    table[bucket, 1] = table[bucket, 1] * _DECAY + share
    hits = table[bucket, 0] + _PRIOR_WEIGHT * PRIORS[bucket]
    rates[bucket] = min(_CEILING, hits / (table[bucket, 1] + _PRIOR_WEIGHT))
