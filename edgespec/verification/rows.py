"""Drawing one token from one row of logits: a single pass, then work on the few rows' blocks that
matter.

Logits are compared as integers: a float32's bits, sign-magnitude turned into two's complement, sort
as the floats do, and integer maxima vectorise without floating-point liberties. The pass keeps the
maximum of every block; a block below the threshold is never read again. Candidates are ordered by
logit, then by lowest id, and one int64 holds both: the sort key above, the complement of the id
below.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.jit import kernel
from edgespec.verification.noise import gumbel, uniform

BLOCK = 64
NOT_A_NUMBER = -1
NO_FINITE_MAXIMUM = -2
NUM_BUCKETS = 2048
_BUCKETS_PER_NAT = 64.0

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN_SHIFT = np.int32(31)
_INFINITY = np.int32(0x7F800000)
_LOWEST = np.int32(-0x7FFFFFFF)
_LOW_WORD = np.int64(0xFFFFFFFF)
_HIGH_SHIFT = np.int64(32)
_MAX_ID = np.int64(0x7FFFFFFF)
WORST = -(2**63)
"""A packed candidate below all others."""


@kernel
def sort_key(bits: np.int32) -> np.int32:
    """An integer that orders as the float with these bits; both zeros are 0."""
    sign = np.int32(bits >> _SIGN_SHIFT)
    return np.int32(np.int32(np.int32(bits & _MAGNITUDE) ^ sign) - sign)


@kernel
def pack(key: np.signedinteger | int, token: int) -> int:
    """A candidate as one integer: larger is better, equal logits go to the lower id."""
    return int((np.int64(key) << _HIGH_SHIFT) | (_MAX_ID - np.int64(token)))


@kernel
def packed_token(candidate: int) -> int:
    """The token of a packed candidate."""
    return int(_MAX_ID - (candidate & _LOW_WORD))


@kernel
def scan(bits: NDArray[np.int32], block_max: NDArray[np.int32]) -> int:
    """Fill every block's largest sort key; return the best token, or a negative status."""
    num_blocks = (len(bits) + BLOCK - 1) // BLOCK
    largest = np.int32(0)
    best = _LOWEST
    best_block = 0
    for block in range(num_blocks):
        start = block * BLOCK
        stop = min(start + BLOCK, len(bits))
        top = _LOWEST
        for i in range(start, stop):
            magnitude = np.int32(bits[i] & _MAGNITUDE)
            key = sort_key(bits[i])
            largest = max(largest, magnitude)
            top = max(top, key)
        block_max[block] = top
        if top > best:
            best = top
            best_block = block
    if largest > _INFINITY:
        return NOT_A_NUMBER
    if best <= -_INFINITY or best >= _INFINITY:
        return NO_FINITE_MAXIMUM
    token = best_block * BLOCK
    while sort_key(bits[token]) != best:
        token += 1
    return token


@kernel
def sift_down(heap: NDArray[np.int64], start: int, size: int) -> None:
    """Restore a min-heap whose element at `start` may be too large."""
    value = heap[start]
    child = 2 * start + 1
    while child < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if value <= heap[child]:
            break
        heap[start] = heap[child]
        start = child
        child = 2 * start + 1
    heap[start] = value


@kernel
def push_bounded(heap: NDArray[np.int64], size: int, limit: int, value: int) -> int:
    """Keep the `limit` largest values in a min-heap; return its new size."""
    if size == limit:
        if value > heap[0]:
            heap[0] = value
            sift_down(heap, 0, size)
        return size
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent] <= value:
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = value
    return size + 1


@kernel
def sort_descending(heap: NDArray[np.int64], size: int) -> None:
    """Turn a min-heap into a list with the largest value first."""
    for end in range(size - 1, 0, -1):
        heap[0], heap[end] = heap[end], heap[0]
        sift_down(heap, 0, end)


@kernel
def select_top(
    bits: NDArray[np.int32], block_max: NDArray[np.int32], limit: int, heap: NDArray[np.int64]
) -> int:
    """Put the `limit` best candidates into `heap`, best first; return how many there are."""
    num_blocks = (len(bits) + BLOCK - 1) // BLOCK
    threshold = np.int64(_LOWEST)
    if num_blocks > limit:
        # `limit` blocks hold a key this high, so the limit-th best key cannot be lower.
        size = 0
        for block in range(num_blocks):
            size = push_bounded(heap, size, limit, block_max[block])
        threshold = heap[0]
    size = 0
    for block in range(num_blocks):
        if block_max[block] < threshold:
            continue
        start = block * BLOCK
        for token in range(start, min(start + BLOCK, len(bits))):
            key = sort_key(bits[token])
            if key >= threshold:
                size = push_bounded(heap, size, limit, pack(key, token))
                if size == limit:  # later ids lose ties, so only a better key can enter
                    threshold = max(threshold, (heap[0] >> _HIGH_SHIFT) + 1)
    sort_descending(heap, size)
    return size


@kernel
def draw_from_top(
    row: NDArray[np.float32],
    heap: NDArray[np.int64],
    size: int,
    temperature: float,
    top_p: float,
    min_p: float,
    key: np.uint64,
) -> int:
    """Cut a list of candidates, best first, by top-p and min-p and draw one."""
    top = np.float64(row[packed_token(heap[0])])
    if top_p < 1.0:
        total = 0.0
        for i in range(size):
            total += math.exp(np.float64(row[packed_token(heap[i])]) - top)
        mass = 0.0
        for i in range(size):
            mass += math.exp(np.float64(row[packed_token(heap[i])]) - top)
            if mass >= top_p * total:
                size = i + 1
                break
    winner = packed_token(heap[0])
    best = top / temperature + gumbel(key, winner)
    for i in range(1, size):
        token = packed_token(heap[i])
        logit = np.float64(row[token])
        if math.exp(logit - top) < min_p:
            break
        score = logit / temperature + gumbel(key, token)
        if score > best:
            best = score
            winner = token
    return winner


@kernel
def bucket_of(logit: np.float32, top: float) -> int:
    """The bucket of a logit, by its distance from the best one."""
    return int(min((top - np.float64(logit)) * _BUCKETS_PER_NAT, NUM_BUCKETS - 1.0))


@kernel
def nucleus_cut(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    top: float,
    top_p: float,
    histogram: NDArray[np.float64],
    heap: NDArray[np.int64],
) -> int:
    """The last candidate, packed, of the smallest set of best tokens with probability `top_p` of
    the whole row.

    Sorts only the bucket in which the sum crosses the line.
    """
    histogram[:] = 0.0
    for token in range(len(row)):
        distance = np.float64(row[token]) - top
        histogram[bucket_of(row[token], top)] += math.exp(distance)
    total = 0.0
    for bucket in range(NUM_BUCKETS):
        total += histogram[bucket]
    mass = 0.0
    last = 0
    while last < NUM_BUCKETS - 1 and mass + histogram[last] < top_p * total:
        mass += histogram[last]
        last += 1
    size = 0
    for token in range(len(row)):
        if bucket_of(row[token], top) == last:
            size = push_bounded(heap, size, len(row), pack(sort_key(bits[token]), token))
    if size == 0:
        return WORST
    sort_descending(heap, size)
    for i in range(size):
        mass += math.exp(np.float64(row[packed_token(heap[i])]) - top)
        if mass >= top_p * total:
            size = i + 1
            break
    last_kept: int = heap[size - 1]
    return last_kept


@kernel
def draw_from_row(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    block_max: NDArray[np.int32],
    best_token: int,
    cut: int,
    temperature: float,
    min_p: float,
    key: np.uint64,
) -> int:
    """Draw from all candidates from `cut` up, block by block."""
    top = np.float64(row[best_token])
    floor = -math.inf
    if min_p > 0.0:
        floor = top + math.log(min_p) - 1e-9  # a quick test; the exact one follows
    winner = best_token
    best = top / temperature + gumbel(key, best_token)
    lowest_key = cut >> _HIGH_SHIFT
    for block in range((len(row) + BLOCK - 1) // BLOCK):
        if block_max[block] < lowest_key:
            continue
        start = block * BLOCK
        for token in range(start, min(start + BLOCK, len(row))):
            logit = np.float64(row[token])
            if logit < floor or pack(sort_key(bits[token]), token) < cut:
                continue
            # -log(-log u) is at most -log(1 - u): most tokens are ruled out without a logarithm.
            gap = best - logit / temperature
            rest = 1.0 - uniform(key, token)
            if (gap > 5.0 and rest > 0.0068) or (gap > 2.5 and rest > 0.083):
                continue
            score = logit / temperature + gumbel(key, token)
            if score > best and (min_p == 0.0 or math.exp(logit - top) >= min_p):
                best = score
                winner = token
    return winner


@kernel
def sample(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    key: np.uint64,
    block_max: NDArray[np.int32],
    heap: NDArray[np.int64],
    histogram: NDArray[np.float64],
) -> int:
    """Draw a token from a penalised row, or return a negative status.

    row [vocab] f32 and `bits`, the same memory as int32; block_max int32 [ceil(vocab / BLOCK)];
    heap int64 [top_k], or [vocab] when top_k is off and top_p is not; histogram f64 [NUM_BUCKETS],
    read only in that case.
    """
    best_token = scan(bits, block_max)
    if best_token < 0 or temperature == 0.0:
        return best_token
    if 0 < top_k < len(row):
        size = select_top(bits, block_max, top_k, heap)
        return draw_from_top(row, heap, size, temperature, top_p, min_p, key)
    cut = WORST
    if top_p < 1.0:
        cut = nucleus_cut(row, bits, np.float64(row[best_token]), top_p, histogram, heap)
    return draw_from_row(row, bits, block_max, best_token, cut, temperature, min_p, key)
