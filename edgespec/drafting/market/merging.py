"""Many proposals become one tree: equal prefixes are one node, likeliest paths come first.

A node that one drafter proposes is as likely as that drafter's posterior says. Where several agree,
what the surest of them says is the score of a source of its own (`AGREED`), whose posterior learns
how much surer agreement is: drafters read the same text and are far from independent. Siblings
exclude each other, so their probabilities are scaled to sum to 1 at most.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.market.acceptance import posterior, record
from edgespec.drafting.tree import DraftTree
from edgespec.system.jit import inner_kernel, kernel

AGREED = 0
"""Row of the statistics for nodes that several drafters propose; no drafter has number 0."""
_MOST = 0.999


@kernel
def add_tree(
    table: NDArray[np.float64],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    p_accept: NDArray[np.float32],
    number: int,
    nodes: NDArray[np.int32],
    chances: NDArray[np.float64],
    place: NDArray[np.int32],
    count: int,
    below: int,
) -> int:
    """Merge source `number`'s tree into `count` merged nodes (0: none yet), of which `below` is its
    root; return their new count.

    Fills, by merged node: nodes [5, n] with token, parent, first child, next sibling and the source
    that is surest of it; of chances [4, n] all but the first row, with what the surest source says,
    the number of sources, and the depth. place [n] is scratch. Siblings of one tree must differ.
    """
    token, parent, child, sibling, source = nodes[0], nodes[1], nodes[2], nodes[3], nodes[4]
    surest, votes, depth = chances[1], chances[2], chances[3]
    if count == 0:
        token[0], parent[0], child[0], sibling[0], source[0] = tokens[0], -1, -1, -1, 0
        surest[0], votes[0], depth[0] = 1.0, 0.0, 0.0
        count = 1
    place[0] = below
    for node in range(1, len(tokens)):
        above = place[parents[node]]
        level = int(depth[above]) + 1
        own = posterior(table, number, np.float64(p_accept[node]), level)
        same = child[above]
        while same >= 0 and token[same] != tokens[node]:
            same = sibling[same]
        if same < 0:
            same = count
            count += 1
            token[same], parent[same], child[same] = tokens[node], above, -1
            sibling[same], child[above] = child[above], same
            source[same], surest[same] = number, own
            votes[same], depth[same] = 1.0, level
        else:
            if own > surest[same]:
                source[same], surest[same] = number, own
            votes[same] += 1.0
        place[node] = same
    return count


@inner_kernel
def share_among_siblings(
    child: NDArray[np.int32],
    sibling: NDArray[np.int32],
    p_accept: NDArray[np.float64],
    node: int,
) -> None:
    """Scale the probabilities below a node so that they sum to 1 at most."""
    total = 0.0
    other = child[node]
    while other >= 0:
        total += p_accept[other]
        other = sibling[other]
    if total > _MOST:
        other = child[node]
        while other >= 0:
            p_accept[other] *= _MOST / total
            other = sibling[other]


@kernel
def likeliest(
    table: NDArray[np.float64],
    nodes: NDArray[np.int32],
    chances: NDArray[np.float64],
    count: int,
    chosen: NDArray[np.int32],
    path_p: NDArray[np.float64],
    rank: NDArray[np.int32],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    p_accept: NDArray[np.float32],
    sources: NDArray[np.uint8],
    most: int,
) -> int:
    """Price all merged nodes, in the first row of chances, and write the `most` likeliest, by the
    probability of their whole path, to tokens, parents, p_accept and sources [most]; return how
    many there are.

    Every prefix of the result is a tree. chosen [most], path_p [count] and rank [count] are
    scratch.
    """
    token, parent, child, sibling = nodes[0], nodes[1], nodes[2], nodes[3]
    for node in range(count):
        rank[node] = -1
        chances[0, node] = chances[1, node]
        if chances[2, node] > 1.0:
            chances[0, node] = posterior(table, AGREED, chances[1, node], int(chances[3, node]))
    for node in range(count):
        share_among_siblings(child, sibling, chances[0], node)
    path_p[0], rank[0], chosen[0] = 1.0, 0, 0
    tokens[0], parents[0], p_accept[0], sources[0] = token[0], -1, 1.0, 0
    size = 1
    while size < min(most, count):
        best, best_p = -1, 0.0
        for place in range(size):
            node = child[chosen[place]]
            while node >= 0:
                if rank[node] < 0:
                    path_p[node] = path_p[parent[node]] * chances[0, node]
                    # Equal paths: the lower token, so that the order never depends on the sources'.
                    tied = path_p[node] == best_p and token[node] < token[best]
                    if path_p[node] > best_p or tied:
                        best, best_p = node, path_p[node]
                node = sibling[node]
        if best < 0:
            break
        chosen[size], rank[best] = best, size
        tokens[size], parents[size] = token[best], rank[parent[best]]
        p_accept[size], sources[size] = chances[0, best], nodes[4, best]
        size += 1
    return size


@kernel
def record_merged(
    table: NDArray[np.float64],
    nodes: NDArray[np.int32],
    chances: NDArray[np.float64],
    new_tokens: NDArray[np.int32],
    credit: NDArray[np.int64],
) -> None:
    """Count nodes that several drafters proposed; credit each right token to its surest source."""
    token, child, sibling, source = nodes[0], nodes[2], nodes[3], nodes[4]
    credit[:] = 0
    node = 0
    for depth in range(1, len(new_tokens) + 1):
        follower, other = -1, child[node]
        while other >= 0:
            hit = token[other] == new_tokens[depth - 1]
            if chances[2, other] > 1.0:
                record(table, AGREED, chances[1, other], depth, hit)
            if hit:
                follower = other
                credit[source[other]] += 1
            other = sibling[other]
        if follower < 0:
            return
        node = follower


class MergedTree:
    """One tree grown out of many; owns the buffers, which grow to what was ever needed."""

    def __init__(self, table: NDArray[np.float64]) -> None:
        self._table = table
        self._count = 0
        self._allocate(128, 32)

    def _allocate(self, num_merged: int, num_chosen: int) -> None:
        self._nodes = np.zeros((5, num_merged), np.int32)
        self._chances = np.zeros((4, num_merged), np.float64)
        self._place = np.zeros(num_merged, np.int32)
        self._path_p = np.zeros(num_merged, np.float64)
        self._rank = np.zeros(num_merged, np.int32)
        self._chosen = np.zeros(num_chosen, np.int32)
        self._tokens = np.zeros(num_chosen, np.int32)
        self._parents = np.zeros(num_chosen, np.int16)
        self._p_accept = np.zeros(num_chosen, np.float32)
        self._sources = np.zeros(num_chosen, np.uint8)

    def clear(self, num_given: int, num_chosen: int) -> None:
        """Start over; make room for so many given nodes, and for so many to be chosen."""
        self._count = 0
        if num_given > len(self._place) or num_chosen > len(self._chosen):
            self._allocate(
                max(2 * num_given, len(self._place)), max(2 * num_chosen, len(self._chosen))
            )

    def __len__(self) -> int:
        """Merged nodes, the root included; 0 before any tree was added."""
        return self._count

    def add(self, tree: DraftTree, number: int, below: int = 0) -> None:
        """Merge a source's tree into this one, its root being node `below` of the `likeliest`."""
        self._count = add_tree(
            self._table,
            tree.tokens,
            tree.parents,
            tree.p_accept,
            number,
            self._nodes,
            self._chances,
            self._place,
            self._count,
            int(self._chosen[below]),
        )

    def likeliest(self, num_nodes: int) -> DraftTree:
        """The surest nodes, at most `num_nodes` with the root; good until the next."""
        size = likeliest(
            self._table,
            self._nodes,
            self._chances,
            self._count,
            self._chosen,
            self._path_p,
            self._rank,
            self._tokens,
            self._parents,
            self._p_accept,
            self._sources,
            num_nodes,
        )
        return DraftTree(
            self._tokens[:size],
            self._parents[:size],
            self._p_accept[:size],
            self._sources[:size],
        )

    def record(self, new_tokens: NDArray[np.int32], credit: NDArray[np.int64]) -> None:
        """Count what several sources agreed on; credit each right token to its surest source."""
        record_merged(self._table, self._nodes, self._chances, new_tokens, credit)

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        merged = (self._nodes, self._chances, self._place, self._path_p, self._rank)
        chosen = (self._chosen, self._tokens, self._parents, self._p_accept, self._sources)
        return sum(array.nbytes for array in (*merged, *chosen))
