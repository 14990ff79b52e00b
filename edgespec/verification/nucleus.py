"""Top-p over a whole row without sorting it.

The probability mass is gathered in buckets by distance from the best logit; only the bucket in
which the sum crosses the line is sorted ("The Curious Case of Neural Text Degeneration", section
3.1, defines the set; the buckets are ours).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.jit import inner_kernel
from edgespec.verification.selection import (
    WORST,
    pack,
    packed_token,
    push_bounded,
    sort_descending,
    sort_key,
)

NUM_BUCKETS = 2048
_BUCKETS_PER_NAT = 64.0


@inner_kernel
def bucket_of(distance: float) -> int:
    """The bucket of a logit by its distance from the best one."""
    return int(min(distance * _BUCKETS_PER_NAT, NUM_BUCKETS - 1.0))


@inner_kernel
def fill_histogram(row: NDArray[np.float32], top: float, histogram: NDArray[np.float64]) -> float:
    """Gather the row's unnormalised probabilities by bucket; return their sum."""
    histogram[:] = 0.0
    for token in range(len(row)):
        distance = top - np.float64(row[token])
        histogram[bucket_of(distance)] += math.exp(-distance)
    total = 0.0
    for bucket in range(NUM_BUCKETS):
        total += histogram[bucket]
    return total


@inner_kernel
def nucleus_cut(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    best_token: int,
    top_p: float,
    histogram: NDArray[np.float64],
    heap: NDArray[np.int64],
) -> int:
    """The last candidate, packed, of the smallest set of best tokens with probability `top_p`."""
    top = np.float64(row[best_token])
    goal = top_p * fill_histogram(row, top, histogram)
    mass = 0.0
    last = 0
    while last < NUM_BUCKETS - 1 and mass + histogram[last] < goal:
        mass += histogram[last]
        last += 1
    # A little below the bucket's lowest logit: the exact test is the bucket's own.
    lowest: float = top - (last + 1) / _BUCKETS_PER_NAT - 1e-6
    if last == NUM_BUCKETS - 1:
        lowest = -math.inf
    size = 0
    for token in range(len(row)):
        logit = np.float64(row[token])
        if logit >= lowest and bucket_of(top - logit) == last:
            size = push_bounded(heap, size, len(row), pack(sort_key(bits[token]), token))
    if size == 0:
        return WORST
    sort_descending(heap, size)
    for i in range(size):
        mass += math.exp(np.float64(row[packed_token(heap[i])]) - top)
        if mass >= goal:
            size = i + 1
            break
    last_kept: int = heap[size - 1]
    return last_kept
