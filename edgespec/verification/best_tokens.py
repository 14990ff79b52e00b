"""Finding the best tokens of a row: the tiles' maxima first, then only the tiles that matter.

Logits are compared as integers: a float32's bits, sign-magnitude turned into two's complement, sort
as the floats do, and integer maxima vectorise without floating-point liberties. Candidates are
ordered by logit, then by lowest id, and one int64 holds both: the sort key above, the complement of
the id below.

There are the maxima of all tiles of 16 logits (`Pass.maxima`). A pass over them keeps the maximum
of every block of tiles; a block, or a tile, below the threshold is not read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import TILE
from edgespec.system.jit import inner_kernel, kernel

BLOCK = 32
"""Tiles of a block."""
NOT_A_NUMBER = -1
NO_FINITE_MAXIMUM = -2
WORST = -(2**63)
"""A packed candidate below all others."""
KEY_SHIFT = np.int64(32)
"""Where the sort key of a packed candidate begins."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN_SHIFT = np.int32(31)
_INFINITY = np.int32(0x7F800000)
_NAN = np.int32(0x7FC00000)
LOWEST = np.int32(-0x7FFFFFFF)
"""A sort key below all others."""
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
def lowest_candidate(logit: float) -> int:
    """A packed candidate below all tokens whose logits are at least `logit`."""
    return int(np.int64(sort_key(np.float32(logit).view(np.int32)) - 1) << KEY_SHIFT)


@inner_kernel
def extremes(bits: NDArray[np.int32]) -> tuple[np.int32, np.int32]:
    """The largest sort key and the largest magnitude."""
    top = LOWEST
    largest = np.int32(0)
    for i in range(len(bits)):
        magnitude = np.int32(bits[i] & _MAGNITUDE)
        key = sort_key(bits[i])
        top = key if key > top else top
        largest = magnitude if magnitude > largest else largest
    return top, largest


@inner_kernel
def tile_maximum(bits: NDArray[np.int32], tile: int) -> np.int32:
    """The bits of the largest float of a tile, or of a NaN when it holds one."""
    top, largest = extremes(bits[tile * TILE : tile * TILE + TILE])
    if largest > _INFINITY:
        return _NAN
    sign = np.int32(top >> _SIGN_SHIFT)  # back to sign and magnitude
    return np.int32(np.int32(np.int32(top ^ sign) - sign) | np.int32(sign & ~_MAGNITUDE))


@inner_kernel
def fill_row(bits: NDArray[np.int32], maxima: NDArray[np.int32]) -> None:
    """Find the maxima [tiles] of a row."""
    for tile in range(len(maxima)):
        maxima[tile] = tile_maximum(bits, tile)


@kernel("int32[:,:]", "int64", "int32[:,:]")
def fill_maxima(bits: NDArray[np.int32], vocab_size: int, maxima: NDArray[np.int32]) -> None:
    """Find the maxima [rows, tiles] of the first `vocab_size` logits of every row."""
    for row in range(len(bits)):
        fill_row(bits[row][:vocab_size], maxima[row])


@inner_kernel
def scan(maxima: NDArray[np.int32], block_max: NDArray[np.int32]) -> int:
    """Fill every block's largest sort key; return the first tile with the best one, or a negative
    status.
    """
    best, best_block = LOWEST, 0
    largest = np.int32(0)
    for block in range(len(block_max)):
        top, magnitude = extremes(maxima[block * BLOCK : block * BLOCK + BLOCK])
        block_max[block] = top
        largest = max(largest, magnitude)
        if top > best:
            best, best_block = top, block
    if largest > _INFINITY:
        return NOT_A_NUMBER
    if best <= -_INFINITY or best >= _INFINITY:
        return NO_FINITE_MAXIMUM
    tile = best_block * BLOCK
    while sort_key(maxima[tile]) != best:
        tile += 1
    return tile


@inner_kernel
def best_of_row(
    bits: NDArray[np.int32], maxima: NDArray[np.int32], block_max: NDArray[np.int32]
) -> int:
    """The best token, the lowest of equals, or a negative status; fills `block_max`."""
    tile = scan(maxima, block_max)
    if tile < 0:
        return tile
    best = sort_key(maxima[tile])
    token, last = tile * TILE, min(tile * TILE + TILE, len(bits)) - 1
    while token < last and sort_key(bits[token]) != best:
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
def lowest_of_top(
    maxima: NDArray[np.int32], block_max: NDArray[np.int32], limit: int, heap: NDArray[np.int64]
) -> np.int64:
    """A sort key that at least `limit` tokens reach: the `limit`-th best of the tiles' maxima."""
    size = int(np.int64(0))  # of a literal, all that it is given to would be compiled twice
    for block in range(len(block_max)):
        if size == limit and block_max[block] <= heap[0]:
            continue
        start = block * BLOCK
        for tile in range(start, min(start + BLOCK, len(maxima))):
            size = push_bounded(heap, size, limit, int(np.int64(sort_key(maxima[tile]))))
    return heap[0] if size == limit else np.int64(LOWEST)


@inner_kernel
def select_top(
    bits: NDArray[np.int32],
    maxima: NDArray[np.int32],
    block_max: NDArray[np.int32],
    limit: int,
    heap: NDArray[np.int64],
) -> int:
    """Put the `limit` best candidates into `heap`, best first; return how many there are."""
    threshold = lowest_of_top(maxima, block_max, limit, heap)
    size = int(np.int64(0))
    for block in range(len(block_max)):
        if block_max[block] < threshold:
            continue
        for tile in range(block * BLOCK, min(block * BLOCK + BLOCK, len(maxima))):
            if sort_key(maxima[tile]) < threshold:
                continue
            for token in range(tile * TILE, min(tile * TILE + TILE, len(bits))):
                key = sort_key(bits[token])
                if key >= threshold:
                    size = push_bounded(heap, size, limit, pack(key, token))
                    if size == limit:  # later ids lose ties, so only a better key can enter
                        threshold = max(threshold, (heap[0] >> KEY_SHIFT) + 1)
    sort_descending(heap, size)
    return size
