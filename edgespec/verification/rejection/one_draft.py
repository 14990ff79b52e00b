"""Speculative sampling: one draft, one distribution, and what is left of it.

A draft x, drawn from the drafter's q, is accepted with probability min(1, p(x) / q(x)); otherwise
the token is drawn from the residual norm(max(0, p - q)). Either way its distribution is p ("Fast
Inference from Transformers via Speculative Decoding", section 2.3; "Accelerating Large Language
Model Decoding with Speculative Sampling").

Distributions are arrays over the target's candidates: elsewhere p, and the residual, are 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import kernel
from edgespec.verification.noise import mix, position_key, uniform


@kernel("uint64", "int64", result="uint64")
def acceptance_key(seed: np.uint64, position: int) -> np.uint64:
    """The key of the verifier's own noise: drafts may be drawn with `gumbel_noise` of that seed."""
    return mix(position_key(seed, position))


@kernel("float64[:]", "float64[:]", "float64", "int64", "float64", "float64", result="bool")
def accept(
    target: NDArray[np.float64],
    draft: NDArray[np.float64],
    draft_sum: float,
    place: int,
    drawn: float,
    luck: float,
) -> bool:
    """Accept one draft, or leave the residual in `target`.

    target f64 [n], its sum 1; draft f64 [n], the drafter's probabilities of the same tokens, and
    `drawn`, the draft's own, all times `draft_sum`; `place` is the draft's among the n, or -1; luck
    in (0, 1).
    """
    if place >= 0 and luck * drawn < target[place] * draft_sum:
        return True
    total = 0.0
    for i in range(len(target)):
        target[i] = max(0.0, target[i] - draft[i] / draft_sum)
        total += target[i]
    if total > 0.0:
        for i in range(len(target)):
            target[i] /= total
    return False


@kernel("float64[:]", "uint64", result="int64")
def draw(weights: NDArray[np.float64], key: np.uint64) -> int:
    """A place, drawn in proportion to the weights."""
    goal = uniform(key, 0) * weights.sum()
    mass = 0.0
    last = 0
    for i in range(len(weights)):
        if weights[i] > 0.0:
            last = i
            mass += weights[i]
            if mass > goal:
                break
    return last
