"""Whether a token is in the smallest set of best ones with probability top-p.

It is when the better ones have less than that. For all but the nearest calls it is enough to add up
shares: probabilities in fixed point, quick, not exact, and with a known error. A share is 2**30 *
e**-distance, by distance from the best logit, as an integer: integers add up to the same in any
order, so the sums vectorise. `slack` is more than a sum can be wrong.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import TILE
from edgespec.system.jit import inner_kernel
from edgespec.verification.best_tokens import BLOCK, WORST, lowest_candidate

ONE = 2.0**30
"""The share of the best token."""
_BITS_PER_NAT = np.float32(math.log2(math.e))
_NOTHING = np.float32(31.0)
_C0, _C1, _C2, _C3 = (
    np.float32(2.0**30 * term) for term in (0.99992522, -0.6910207, 0.23007034, -0.03901225)
)
"""2**-x for x in 0..1 to one part in 9,000, times 2**30."""


@inner_kernel
def share(distance: np.float32) -> np.int64:
    """2**30 * e**-distance to one part in 9,000 and one unit, for a distance from 0 up."""
    halvings = min(np.float32(distance * _BITS_PER_NAT), _NOTHING)
    whole = np.int32(halvings)
    rest = np.float32(halvings - np.float32(whole))
    power = np.int32(_C0 + rest * (_C1 + rest * (_C2 + rest * _C3)))
    return np.int64(power >> whole)


@inner_kernel
def share_sum(bits: NDArray[np.int32], top: np.float32) -> int:
    """The shares of all floats with these bits, none of which is above `top`."""
    total = np.int64(0)
    for i in range(len(bits)):
        total += share(np.float32(top - np.int32(bits[i]).view(np.float32)))
    return int(total)


@inner_kernel
def share_of_better(
    values: NDArray[np.float32], top: np.float32, logit: np.float32, place: int
) -> np.int64:
    """The shares of the values above `logit`, and of those that equal it before `place`."""
    total = np.int64(0)
    for i in range(len(values)):
        part = share(np.float32(top - values[i]))
        better = values[i] > logit or (values[i] == logit and i < place)
        total += part if better else np.int64(0)
    return total


@inner_kernel
def share_above(
    row: NDArray[np.float32],
    block_max: NDArray[np.int32],
    key: np.int32,
    top: np.float32,
    token: int,
) -> int:
    """The shares of all candidates better than `token`, whose sort key is `key`."""
    total = np.int64(0)
    for block in range(len(block_max)):
        if block_max[block] >= key:
            start = block * BLOCK * TILE
            values = row[start : start + BLOCK * TILE]  # a slice: its indices are never negative
            total += share_of_better(values, top, row[token], token - start)
    return int(total)


@inner_kernel
def slack(total: int, count: int) -> float:
    """More than a sum of `count` shares can differ from the exact one."""
    return total * 2.0**-12 + count


@inner_kernel
def cut_below(top: np.float32, size: int, least: float, top_p: float) -> int:
    """A candidate that the set does not go below: all of the `size` tokens below it together have
    less than 1 - top_p of `least`, shares that are no more than the whole.
    """
    rest = 1.0 - top_p - 1e-9
    if rest <= 0.0:
        return WORST
    return lowest_candidate(np.float64(top) + math.log(rest * least / (ONE * size)) - 1e-6)


@inner_kernel
def is_inside(row: NDArray[np.float32], top: np.float32, winner: int, top_p: float) -> bool:
    """Whether the candidates better than the winner have less than `top_p` of all probability."""
    total, above = 0.0, 0.0
    for token in range(len(row)):
        weight = math.exp(np.float64(row[token]) - np.float64(top))
        total += weight
        if row[token] > row[winner] or (row[token] == row[winner] and token < winner):
            above += weight
    return above < top_p * total
