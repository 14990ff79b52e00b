"""Drawing from a row that top-k does not cut: tile by tile, past those that cannot win.

Top-p needs neither a sorted row nor its edge: only whether the token that was drawn is in the set
("The Curious Case of Neural Text Degeneration", section 3.1, defines the set).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import TILE
from edgespec.system.jit import inner_kernel
from edgespec.verification.best_tokens import BLOCK, KEY_SHIFT, pack, sort_key
from edgespec.verification.noise import gumbel, highest_uniform, uniform
from edgespec.verification.nucleus import cut_below, is_inside, share_above, share_sum, slack


@inner_kernel
def hopeless(gap: float, rest: float) -> bool:
    """Whether noise made from 1 - rest, or less, cannot make up for a logit `gap` below.

    -log(-log u) is at most -log(1 - u): most tokens are ruled out without a logarithm.
    """
    return (
        (gap > 10.0 and rest > 4.6e-5)
        or (gap > 5.0 and rest > 0.0068)
        or (gap > 2.5 and rest > 0.083)
    )


@inner_kernel
def draw_from_row(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    maxima: NDArray[np.int32],
    block_max: NDArray[np.int32],
    best_token: int,
    cut: int,
    options: tuple[float, float, np.uint64],
) -> int:
    """Draw from all candidates from `cut` up that have min-p of the best one's probability;
    `options` are the temperature, min-p and the key of the noise.
    """
    temperature, min_p, key = options
    top = np.float64(row[best_token])
    winner = best_token
    best = top / temperature + gumbel(key, best_token)
    lowest_key = cut >> KEY_SHIFT
    for block in range(len(block_max)):
        if block_max[block] < lowest_key:
            continue
        for tile in range(block * BLOCK, min(block * BLOCK + BLOCK, len(maxima))):
            if sort_key(maxima[tile]) < lowest_key:
                continue
            start = tile * TILE
            stop = min(start + TILE, len(row))
            largest = np.float64(np.int32(maxima[tile]).view(np.float32))
            rest = 1.0 - highest_uniform(key, start, stop - start)
            if hopeless(best - largest / temperature, rest):
                continue
            for token in range(start, stop):
                if pack(sort_key(bits[token]), token) < cut:
                    continue
                logit = np.float64(row[token])
                if hopeless(best - logit / temperature, 1.0 - uniform(key, token)):
                    continue
                score = logit / temperature + gumbel(key, token)
                if score > best and (min_p == 0.0 or math.exp(logit - top) >= min_p):
                    best = score
                    winner = token
    return winner


@inner_kernel
def draw_from_nucleus(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    maxima: NDArray[np.int32],
    block_max: NDArray[np.int32],
    best_token: int,
    cut: int,
    top_p: float,
    options: tuple[float, float, np.uint64],
) -> int:
    """Draw from the smallest set of best candidates with probability `top_p`.

    The best of many is the best of any part that it is in: so the winner is drawn as if there were
    no such set, and then looked for in it. If it is outside, so is all below it, and the next try
    leaves that out. Rough sums nearly always tell the two apart, the maxima's alone often.
    """
    top, size = row[best_token], len(row)
    total = share_sum(maxima, top)  # every maximum is one of the logits, so this is too little
    least = total - slack(total, len(maxima))
    if top_p < 1.0:
        cut = max(cut, cut_below(top, size, least, top_p))
    complete = False
    while True:
        winner = draw_from_row(row, bits, maxima, block_max, best_token, cut, options)
        if top_p >= 1.0 or winner == best_token:
            return winner
        key = sort_key(bits[winner])
        above = share_above(row, block_max, key, top, winner)
        wrong = slack(above, size)
        if not complete and above + wrong >= top_p * least:
            complete = True
            total = share_sum(bits, top)
            least = total - slack(total, size)
        if above + wrong < top_p * least:
            return winner
        most = total + slack(total, size)
        if above - wrong < top_p * most and is_inside(row, top, winner, top_p):
            return winner
        cut = pack(key, winner) + 1
