"""Which nodes to verify: those that maximise expected tokens per second, whosever they are.

The rule is goodput: expected tokens, one for each sequence and the path probability of each node
taken, over the seconds of drafting and of a pass over so many nodes, at its largest ("Optimizing
Speculative Decoding for Serving Large Language Models Using Goodput"; the threshold of "SpecDec++"
and the tree size of "Hardware-Aware Parallel Prompt Decoding" follow from it). Where several
sequences share a pass, their nodes compete by the probability of their paths ("TETRIS: Optimal
Draft Token Selection for Batch Speculative Decoding"; there the number of nodes is given).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tree import DraftTree
from edgespec.system.jit import kernel

Longs = NDArray[np.int64]
MARGIN = 1.01
"""Drafts must promise this much more goodput than plain decoding."""


@kernel(
    "int16[:]",
    "float32[:]",
    "int64[:]",
    "float64[:]",
    "float64",
    "float64",
    "int64",
    "float64[:]",
    "int64[:]",
    "int64[:]",
)
def share_nodes(
    parents: NDArray[np.int16],
    p_accept: NDArray[np.float32],
    ends: NDArray[np.int64],
    seconds: NDArray[np.float64],
    draft_s: float,
    risk_s: float,
    most: int,
    path_p: NDArray[np.float64],
    heads: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Fill `counts` with how many nodes of each tree besides its root maximise goodput.

    The trees follow one another in `parents` and `p_accept`, tree t up to `ends[t]`, each with its
    surest nodes first; seconds[k] is the price of k + 1 nodes. A pass may take at most `risk_s`
    longer than a plain one, and hold at most `most` nodes besides the roots. path_p and heads are
    scratch: the probability that all nodes down to one are accepted, and the last one taken.
    """
    num_trees = len(ends)
    first = 0
    for tree in range(num_trees):
        heads[tree], counts[tree] = first, 0
        path_p[first] = lowest = 1.0
        for node in range(first + 1, ends[tree]):
            lowest = min(lowest, path_p[first + parents[node]] * np.float64(p_accept[node]))
            path_p[node] = lowest
        first = ends[tree]
    plain = seconds[num_trees - 1]
    expected = np.float64(num_trees)
    best_goodput = MARGIN * expected / (plain + draft_s)
    for taken in range(1, most + 1):
        best = -1
        for tree in range(num_trees):
            node = heads[tree] + 1
            if node < ends[tree] and (best < 0 or path_p[node] > path_p[heads[best] + 1]):
                best = tree
        price = seconds[num_trees - 1 + taken]
        if best < 0 or price - plain > risk_s:
            break
        heads[best] += 1
        expected += path_p[heads[best]]
        if expected / (price + draft_s) > best_goodput:
            best_goodput = expected / (price + draft_s)
            first = 0
            for tree in range(num_trees):
                counts[tree] = heads[tree] - first
                first = ends[tree]


class NodeChoice:
    """The choice for any number of trees; owns its scratch."""

    def __init__(self) -> None:
        self._allocate(1, 256)

    def _allocate(self, num_trees: int, num_nodes: int) -> None:
        self._ends = np.zeros(num_trees, np.int64)
        self._heads = np.zeros(num_trees, np.int64)
        self._counts = np.zeros(num_trees, np.int64)
        self._path_p = np.zeros(num_nodes, np.float64)

    def words(self, num_nodes: int) -> tuple[Longs, Longs, Longs, NDArray[np.float64]]:
        """What `share_nodes` takes for one tree of so many nodes: ends, heads, counts, path_p."""
        if len(self._ends) != 1 or num_nodes > len(self._path_p):
            self._allocate(1, max(num_nodes, len(self._path_p)))
        return self._ends, self._heads, self._counts, self._path_p

    def counts(
        self,
        trees: Sequence[DraftTree],
        seconds: NDArray[np.float64],
        draft_s: float,
        risk_s: float,
        most: int,
    ) -> list[int]:
        """How many nodes of each tree besides its root to verify; see `share_nodes`."""
        num_nodes, num_trees = sum(map(len, trees)), len(trees)
        if num_trees != len(self._ends) or num_nodes > len(self._path_p):
            self._allocate(num_trees, max(2 * num_nodes, len(self._path_p)))
        if num_trees == 1:
            parents, p_accept = trees[0].parents, trees[0].p_accept
            self._ends[0] = num_nodes
        else:
            parents = np.concatenate([tree.parents for tree in trees])
            p_accept = np.concatenate([tree.p_accept for tree in trees])
            np.cumsum([len(tree) for tree in trees], out=self._ends)
        share_nodes(
            parents,
            p_accept,
            self._ends,
            seconds,
            draft_s,
            risk_s,
            min(most, len(seconds) - num_trees),
            self._path_p,
            self._heads,
            self._counts,
        )
        return self._counts.tolist()

    @property
    def size_bytes(self) -> int:
        """Bytes of its buffers."""
        own = (self._ends, self._heads, self._counts, self._path_p)
        return sum(array.nbytes for array in own)
