"""Recursive rejection sampling: siblings drawn without replacement.

Every sibling is tried in the order of drawing, against what the ones before it left of the target,
with the drafter's probabilities after they were taken out ("Recursive Speculative Decoding:
Accelerating LLM Inference via Sampling Without Replacement"; "Sequoia: Scalable, Robust, and
Hardware-aware Speculative Decoding"). An only child is speculative sampling.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import kernel
from edgespec.verification.noise import uniform
from edgespec.verification.rejection.one_draft import accept


@kernel("float64[:]", "float64[:]", "int64[:]", "float64[:]", "uint64", result="int64")
def accept_recursive(
    target: NDArray[np.float64],
    draft: NDArray[np.float64],
    places: NDArray[np.int64],
    drawn: NDArray[np.float64],
    key: np.uint64,
) -> int:
    """The accepted sibling, or -1 and the residual in `target`.

    target, draft f64 [n]: both distributions over the target's candidates; places int64 [k], each
    sibling's among them or -1; drawn f64 [k], the drafter's probabilities of the siblings.
    """
    rest = 1.0
    for i in range(len(places)):
        if drawn[i] <= 0.0 or rest <= 0.0:
            continue
        if accept(target, draft, rest, places[i], drawn[i], uniform(key, i + 1)):
            return i
        rest -= drawn[i]  # draft keeps the token, of which the target has nothing left
    return -1
