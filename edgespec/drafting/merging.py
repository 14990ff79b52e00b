"""Many proposals become one tree: equal prefixes are one node, likeliest paths come first.

A node that one drafter proposes is as likely as that drafter's posterior says. Where several agree,
the chance that all of them are wrong, were they independent, is the score of a source of its own
(`AGREED`), whose posterior learns how far they are not. Siblings exclude each other, so their
probabilities are scaled to sum to 1 at most.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.calibration import posterior, record
from edgespec.jit import kernel

AGREED = 0
"""Row of the statistics for nodes that several drafters propose; no drafter has number 0."""
_MOST = 0.999


@kernel
def merge(
    table: NDArray[np.float64],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    scores: NDArray[np.float32],
    sources: NDArray[np.uint8],
    starts: NDArray[np.int32],
    nodes: NDArray[np.int32],
    place: NDArray[np.int32],
    chances: NDArray[np.float64],
) -> int:
    """Merge trees that lie one after the other from `starts` [trees + 1] on; roots are one node.

    Fills, by merged node: nodes [5, n] with token, parent, first child, next sibling and the source
    that is surest of it; chances [4, n] with p_accept given the parent, the chance that all sources
    are wrong, the number of sources, and the depth. place [n] maps given nodes to merged ones.
    Siblings of one tree must differ. Returns how many merged nodes there are.
    """
    token, parent, child, sibling, source = nodes[0], nodes[1], nodes[2], nodes[3], nodes[4]
    p_accept, wrong, votes, depth = chances[0], chances[1], chances[2], chances[3]
    token[0], parent[0], child[0], sibling[0], source[0] = tokens[0], -1, -1, -1, 0
    p_accept[0], wrong[0], votes[0], depth[0] = 1.0, 0.0, 0.0, 0.0
    count = 1
    for tree in range(len(starts) - 1):
        first = starts[tree]
        place[first] = 0
        for node in range(first + 1, starts[tree + 1]):
            above = place[first + parents[node]]
            level = int(depth[above]) + 1
            own = posterior(table, sources[node], np.float64(scores[node]), level)
            same = child[above]
            while same >= 0 and token[same] != tokens[node]:
                same = sibling[same]
            if same < 0:
                same = count
                count += 1
                token[same], parent[same], child[same] = tokens[node], above, -1
                sibling[same], child[above] = child[above], same
                p_accept[same], source[same], wrong[same] = own, sources[node], 1.0 - own
                votes[same], depth[same] = 1.0, level
            else:
                if own > p_accept[same]:
                    p_accept[same], source[same] = own, sources[node]
                wrong[same] *= 1.0 - own
                votes[same] += 1.0
            place[node] = same
    for node in range(1, count):
        if votes[node] > 1.0:
            score = min(1.0 - wrong[node], _MOST)
            p_accept[node] = posterior(table, AGREED, score, int(depth[node]))
    for node in range(count):
        share_among_siblings(child, sibling, p_accept, node)
    return count


@kernel
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
    nodes: NDArray[np.int32],
    chances: NDArray[np.float64],
    count: int,
    chosen: NDArray[np.int32],
    path_p: NDArray[np.float64],
    rank: NDArray[np.int32],
) -> int:
    """Order merged nodes by the probability of their whole path; returns how many `chosen` holds.

    Every prefix of the order is a tree. path_p [count] is scratch and result by merged node; rank
    [count] becomes each chosen node's place.
    """
    token, parent, child, sibling = nodes[0], nodes[1], nodes[2], nodes[3]
    for node in range(count):
        rank[node] = -1
    path_p[0], rank[0], chosen[0] = 1.0, 0, 0
    size = 1
    while size < min(len(chosen), count):
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
                score = min(1.0 - chances[1, other], _MOST)
                record(table, AGREED, score, depth, hit)
            if hit:
                follower = other
                credit[source[other]] += 1
            other = sibling[other]
        if follower < 0:
            return
        node = follower
