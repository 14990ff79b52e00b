"""Drawing one token from one row of logits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.jit import inner_kernel
from edgespec.verification.noise import gumbel, uniform
from edgespec.verification.nucleus import nucleus_cut
from edgespec.verification.selection import (
    BLOCK,
    KEY_SHIFT,
    WORST,
    pack,
    packed_token,
    scan,
    select_top,
    sort_key,
)


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
    lowest_key = cut >> KEY_SHIFT
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


@inner_kernel
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
        cut = nucleus_cut(row, bits, best_token, top_p, histogram, heap)
    return draw_from_row(row, bits, block_max, best_token, cut, temperature, min_p, key)
