"""Finding the best tokens of a row: one pass, then only the blocks that matter.

Logits are compared as integers: a float32's bits, sign-magnitude turned into two's complement, sort
as the floats do, and integer maxima vectorise without floating-point liberties. The pass keeps the
maximum of every block; a block below the threshold is never read again. Candidates are ordered by
logit, then by lowest id, and one int64 holds both: the sort key above, the complement of the id
below.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.jit import inner_kernel

BLOCK = 64
NOT_A_NUMBER = -1
NO_FINITE_MAXIMUM = -2
WORST = -(2**63)
"""A packed candidate below all others."""
KEY_SHIFT = np.int64(32)
"""Where the sort key of a packed candidate begins."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN_SHIFT = np.int32(31)
_INFINITY = np.int32(0x7F800000)
_LOWEST = np.int32(-0x7FFFFFFF)
_LOW_WORD = np.int64(0xFFFFFFFF)
_MAX_ID = np.int64(0x7FFFFFFF)


@inner_kernel
def sort_key(bits: np.int32) -> np.int32:
    """An integer that orders as the float with these bits; both zeros are 0."""
    sign = np.int32(bits >> _SIGN_SHIFT)
    return np.int32(np.int32(np.int32(bits & _MAGNITUDE) ^ sign) - sign)


@inner_kernel
def pack(key: np.signedinteger | int, token: int) -> int:
    """A candidate as one integer: larger is better, equal logits go to the lower id."""
    return int((np.int64(key) << KEY_SHIFT) | (_MAX_ID - np.int64(token)))


@inner_kernel
def packed_token(candidate: int) -> int:
    """The token of a packed candidate."""
    return int(_MAX_ID - (candidate & _LOW_WORD))


@inner_kernel
def block_extremes(bits: NDArray[np.int32], start: int, stop: int) -> tuple[np.int32, np.int32]:
    """The largest sort key and the largest magnitude of bits[start:stop]."""
    top = _LOWEST
    largest = np.int32(0)
    for i in range(start, stop):
        magnitude = np.int32(bits[i] & _MAGNITUDE)
        key = sort_key(bits[i])
        top = key if key > top else top
        largest = magnitude if magnitude > largest else largest
    return top, largest


@inner_kernel
def scan(bits: NDArray[np.int32], block_max: NDArray[np.int32]) -> int:
    """Fill every block's largest sort key; return the best token, or a negative status."""
    best, best_block = _LOWEST, 0
    largest = np.int32(0)
    num_whole = len(bits) // BLOCK
    for block in range((len(bits) + BLOCK - 1) // BLOCK):
        start = block * BLOCK
        if block < num_whole:  # a constant length makes straight vector code
            top, magnitude = block_extremes(bits, start, start + BLOCK)
        else:
            top, magnitude = block_extremes(bits, start, len(bits))
        block_max[block] = top
        largest = max(largest, magnitude)
        if top > best:
            best, best_block = top, block
    if largest > _INFINITY:
        return NOT_A_NUMBER
    if best <= -_INFINITY or best >= _INFINITY:
        return NO_FINITE_MAXIMUM
    token = best_block * BLOCK
    while sort_key(bits[token]) != best:
        token += 1
    return token


@inner_kernel
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


@inner_kernel
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


@inner_kernel
def sort_descending(heap: NDArray[np.int64], size: int) -> None:
    """Turn a min-heap into a list with the largest value first."""
    for end in range(size - 1, 0, -1):
        heap[0], heap[end] = heap[end], heap[0]
        sift_down(heap, 0, end)


@inner_kernel
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
                    threshold = max(threshold, (heap[0] >> KEY_SHIFT) + 1)
    sort_descending(heap, size)
    return size
