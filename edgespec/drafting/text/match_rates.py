"""Match lengths in buckets, and how often matches of each are usually right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import inner_kernel

LONGEST_MATCH = 64
"""Longer matches count as this long."""
_EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
PRIORS = (0.15, 0.35, 0.5, 0.6, 0.7, 0.78, 0.84, 0.88, 0.91, 0.93, 0.95)
"""Acceptance that matches of these lengths usually reach on text that repeats itself."""


def _bucket_table() -> NDArray[np.int32]:
    lengths = np.arange(LONGEST_MATCH + 1)
    table = np.searchsorted(np.array(_EDGES), lengths, side="right") - 1
    return np.maximum(table, 0).astype(np.int32)


BUCKETS = _bucket_table()
"""Match length, up to LONGEST_MATCH, to its bucket."""


@inner_kernel
def bucket_of(match: int) -> int:
    """The bucket of a match length."""
    bucket: int = BUCKETS[min(match, LONGEST_MATCH)]
    return bucket
