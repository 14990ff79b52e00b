"""The likeliest tokens of every row of a pass, for drafters that learn from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import inner_kernel, kernel
from edgespec.verification.best_tokens import (
    pack,
    packed_token,
    push_bounded,
    sort_descending,
    sort_key,
)

_STRIDE = 64


@inner_kernel
def _best_key(bits: NDArray[np.int32]) -> np.int32:
    best = np.int32(-(2**31))
    for i in range(len(bits)):
        key = sort_key(bits[i])
        best = key if key > best else best
    return best


@kernel("float32[:]", "int32[:]", "int32[:]", "float32[:]", "int64[:]")
def fill_top(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    tokens: NDArray[np.int32],
    values: NDArray[np.float32],
    heap: NDArray[np.int64],
) -> None:
    """Fill `tokens` and `values` [k] from a row of logits [vocab] and the same memory as int32."""
    limit = len(heap)
    size = 0
    for start in range(0, len(bits), _STRIDE):
        stop = min(start + _STRIDE, len(bits))
        if size == limit and pack(_best_key(bits[start:stop]), start) <= heap[0]:
            continue
        for token in range(start, stop):
            size = push_bounded(heap, size, limit, pack(sort_key(bits[token]), token))
    sort_descending(heap, size)
    for rank in range(limit):
        tokens[rank] = packed_token(heap[rank])
        values[rank] = row[tokens[rank]]


def top_tokens(
    logits: NDArray[np.float32], num_tokens: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The best `num_tokens` of each row of logits [n, vocab], best first, equals by lowest id:
    tokens and their logits, both [n, min(num_tokens, vocab)].
    """
    shape = len(logits), min(num_tokens, logits.shape[1])
    tokens, values = np.empty(shape, np.int32), np.empty(shape, np.float32)
    heap = np.empty(shape[1], np.int64)
    for place, row in enumerate(logits):  # rows may have gaps between them, a row has none
        fill_top(row, row.view(np.int32), tokens[place], values[place], heap)
    return tokens, values
