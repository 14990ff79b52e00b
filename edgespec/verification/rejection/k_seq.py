"""k-SEQ: siblings drawn independently, with replacement.

Each of k siblings x is accepted with probability min(1, p(x) / (rho q(x))), the first one wins. One
sibling is accepted with probability beta = sum(min(q, p / rho)), some sibling with 1 - (1 -
beta)**k; the residual makes up for what that brings too little of each token. The smallest rho for
which no token comes too often is found by bisection ("SpecTr: Fast Speculative Decoding via Optimal
Transport", k-sequential selection).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import kernel
from edgespec.verification.noise import uniform

_ROUNDS = 40


@kernel("float64[:]", "float64[:]", "float64", result="float64")
def acceptance(target: NDArray[np.float64], draft: NDArray[np.float64], rho: float) -> float:
    """Beta: the probability that one sibling is accepted."""
    beta = 0.0
    for i in range(len(target)):
        beta += min(draft[i], target[i] / rho)
    return min(beta, 1.0)


@kernel("float64", "int64", result="float64")
def trials(beta: float, num_siblings: int) -> float:
    """How many siblings are looked at on average: (1 - (1 - beta)**k) / beta, also for beta 0."""
    expected = 0.0
    for i in range(num_siblings):
        expected += (1.0 - beta) ** i
    return expected


@kernel("float64[:]", "float64[:]", "int64", result="float64")
def smallest_rho(
    target: NDArray[np.float64], draft: NDArray[np.float64], num_siblings: int
) -> float:
    """The smallest rho, from above, that is at least the average number of trials.

    A token is emitted from siblings at most trials * p / rho of the time: no more often than p.
    """
    low, high = 1.0, float(max(num_siblings, 1))
    for _ in range(_ROUNDS):
        rho = 0.5 * (low + high)
        if rho >= trials(acceptance(target, draft, rho), num_siblings):
            high = rho
        else:
            low = rho
    return high


@kernel("float64[:]", "float64[:]", "int64[:]", "float64[:]", "uint64", result="int64")
def accept_k_seq(
    target: NDArray[np.float64],
    draft: NDArray[np.float64],
    places: NDArray[np.int64],
    drawn: NDArray[np.float64],
    key: np.uint64,
) -> int:
    """The accepted sibling, or -1 and the residual in `target`, not normalised; the arguments are
    those of `accept_recursive`.
    """
    num_siblings = 0
    for i in range(len(drawn)):
        num_siblings += drawn[i] > 0.0
    rho = smallest_rho(target, draft, num_siblings)
    for i in range(len(places)):
        if drawn[i] <= 0.0 or places[i] < 0:
            continue
        if uniform(key, i + 1) * rho * drawn[i] < target[places[i]]:
            return i
    expected = trials(acceptance(target, draft, rho), num_siblings)
    for i in range(len(target)):
        taken = min(draft[i], target[i] / rho) * expected
        target[i] = max(0.0, target[i] - taken)
    return -1
