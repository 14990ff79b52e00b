"""How often drafts were right, so that a drafter's score becomes a probability.

For each drafter, score bucket and depth: how many nodes were right, decayed, and how many would
have been were the scores probabilities. Their ratio, drawn to one as a Gamma prior draws it, is
what a score is multiplied by: what is not yet known is believed, what was seen is known better, and
scores keep their order inside a bucket. A drafter's score is a function of its match length, so
score buckets are match-length buckets that also fit drafters without matches.

Where several drafters propose, what one alone says is less likely than what it says on the whole:
the others looked, and said something else. So its row counts nodes that nobody else proposed, and
the rest are counted as agreed on (`merging.record_merged`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import inner_kernel, kernel

NUM_SCORES = 10
NUM_DEPTHS = 5
_PRIOR_RIGHT = 2.0
"""Right nodes that believing a drafter is worth."""
_DECAY = 0.99
MOST_COUNTED = 1.0 / (1.0 - _DECAY) + 1e-6
"""More than any of a cell's decayed counts reaches."""
_LEAST = 0.001
_MOST = 0.995


@inner_kernel
def depth_bucket(depth: int) -> int:
    """Depths 1, 2, 3-4, 5-8 and beyond."""
    if depth <= 2:
        return max(depth, 1) - 1
    if depth <= 4:
        return 2
    return 3 if depth <= 8 else 4


@inner_kernel
def score_bucket(p_accept: float) -> int:
    """The tenth that a score falls into."""
    return min(max(int(p_accept * NUM_SCORES), 0), NUM_SCORES - 1)


@kernel("float64[:,:,:,:]", "int64", "float64", "int64", result="float64")
def posterior(table: NDArray[np.float64], source: int, p_accept: float, depth: int) -> float:
    """The posterior mean of a node's acceptance, given that its parent is accepted."""
    cell = table[source, score_bucket(p_accept), depth_bucket(depth)]
    mean: float = p_accept * (cell[0] + _PRIOR_RIGHT) / (cell[1] + _PRIOR_RIGHT)
    return min(max(mean, _LEAST), _MOST)


@inner_kernel
def record(table: NDArray[np.float64], source: int, p_accept: float, depth: int, hit: bool) -> None:
    """Count one checked node and fade older ones of its cell."""
    cell = table[source, score_bucket(p_accept), depth_bucket(depth)]
    cell[0] = cell[0] * _DECAY + (1.0 if hit else 0.0)
    cell[1] = cell[1] * _DECAY + p_accept


@kernel(
    "float64[:,:,:,:]",
    "int64",
    "int32[:]",
    "int16[:]",
    "float32[:]",
    "int32[:]",
    "int64",
    "bool",
    result="int64",
)
def record_tree(
    table: NDArray[np.float64],
    source: int,
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    p_accept: NDArray[np.float32],
    new_tokens: NDArray[np.int32],
    begin: int,
    is_alone: bool,
) -> int:
    """How many tokens of a source's tree were right; if it `is_alone`, every node whose parent was
    is counted, verified or not. The tree begins after the first `begin` new tokens, its root being
    right.
    """
    node = 0
    for depth in range(begin + 1, len(new_tokens) + 1):
        follower = -1
        for child in range(node + 1, len(tokens)):
            if parents[child] == node:
                hit = tokens[child] == new_tokens[depth - 1]
                if is_alone:
                    record(table, source, np.float64(p_accept[child]), depth, hit)
                if hit:
                    follower = child
        if follower < 0:
            return depth - 1
        node = follower
    return len(new_tokens)


class AcceptanceStatistics:
    """Decayed counts of right and checked draft nodes by source, score and depth.

    Source 0 stands for nodes that several drafters agree on.
    """

    def __init__(self, num_sources: int = 16) -> None:
        self.table = np.zeros((num_sources, NUM_SCORES, NUM_DEPTHS, 2), np.float64)
        """Per cell: right nodes, and how many the scores promised."""

    def p_accept(self, source: int, score: float, depth: int) -> float:
        """The calibrated probability of a node with this score, its parent being accepted."""
        return float(posterior(self.table, source, score, depth))

    def save(self) -> None:
        """Keep what was learnt for the next run; these are forgotten."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the table."""
        return self.table.nbytes
