"""Drawing one token from one row of logits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import inner_kernel
from edgespec.verification.best_tokens import (
    WORST,
    best_of_row,
    lowest_candidate,
    packed_token,
    select_top,
)
from edgespec.verification.noise import gumbel
from edgespec.verification.whole_row import draw_from_nucleus


@inner_kernel
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


@inner_kernel
def sample(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    maxima: NDArray[np.int32],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    key: np.uint64,
    block_max: NDArray[np.int32],
    heap: NDArray[np.int64],
) -> int:
    """Draw a token from a penalised row, or return a negative status.

    row [vocab] f32 and `bits`, the same memory as int32; maxima [tiles], bits of f32; block_max
    int32 [ceil(tiles / BLOCK)]; heap int64 [top_k].
    """
    best_token = best_of_row(bits, maxima, block_max)
    if best_token < 0 or temperature == 0.0:
        return best_token
    if 0 < top_k < len(row):
        size = select_top(bits, maxima, block_max, top_k, heap)
        return draw_from_top(row, heap, size, temperature, top_p, min_p, key)
    cut = WORST
    if min_p > 0.0:  # a quick test; the exact one follows
        cut = lowest_candidate(np.float64(row[best_token]) + math.log(min_p) - 1e-9)
    options = (temperature, min_p, key)
    return draw_from_nucleus(row, bits, maxima, block_max, best_token, cut, top_p, options)
