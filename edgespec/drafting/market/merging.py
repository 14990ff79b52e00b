"""Many proposals become one tree: equal prefixes are one node, likeliest paths come first.

A node that one drafter proposes is as likely as that drafter's posterior says, which is learnt from
such nodes. Where several agree, what the surest of them says is the score of a source of its own
(`AGREED`), whose posterior learns how much surer agreement is: drafters read the same text and are
far from independent. Siblings exclude each other, so their probabilities are scaled to sum to 1 at
most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.market.acceptance import posterior, record
from edgespec.drafting.tree import DraftTree
from edgespec.system.addresses import (
    AddressTable,
    float32_line,
    float64_block,
    float64_line,
    float64_rows,
    int16_line,
    int32_line,
    int32_rows,
    set_word,
    uint8_line,
    word,
)
from edgespec.system.jit import inner_kernel, kernel

AGREED = 0
"""Row of the statistics for nodes that several drafters propose; no drafter has number 0."""
_MOST = 0.999
STATISTICS, NODES, CHANCES, PLACE, PATH_P, RANK, CHOSEN = 0, 5, 8, 11, 13, 15, 17
TREE_TOKENS, TREE_PARENTS, TREE_CHANCES, TREE_SOURCES = 19, 21, 23, 25
NUM_MERGED, LAST, OWN = 27, 28, 29
"""Words of a market's table: the statistics, all nodes of all sources, scratch, the tree that is
proposed, how many nodes were merged (0: none), the text's last token; from the last on, see
`step.py`.
"""


@inner_kernel
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

    Fills, by merged node: nodes [6, n] with token, parent, first child, next sibling, the source
    that is surest of it and the one that said it first; of chances [5, n] all but the first row,
    with what the surest source says, the number of sources, the depth, and the highest score.
    place [n] is scratch. Siblings of one tree must differ.
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
            source[same], nodes[5, same], surest[same] = number, number, own
            votes[same], depth[same], chances[4, same] = 1.0, level, np.float64(p_accept[node])
        else:
            if own > surest[same]:
                source[same], surest[same] = number, own
            votes[same] += 1.0
            chances[4, same] = max(chances[4, same], np.float64(p_accept[node]))
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


@inner_kernel
def price(core: int) -> None:
    """Each merged node's probability, given its parent's, in the first row of chances."""
    nodes, chances = int32_rows(core, NODES), float64_rows(core, CHANCES)
    table, rank = float64_block(core, STATISTICS), int32_line(core, RANK)
    count = word(core, NUM_MERGED)
    for node in range(count):
        rank[node] = -1
        chances[0, node] = chances[1, node]
        if chances[2, node] > 1.0:
            chances[0, node] = posterior(table, AGREED, chances[4, node], int(chances[3, node]))
    for node in range(count):
        share_among_siblings(nodes[2], nodes[3], chances[0], node)


@inner_kernel
def next_best(core: int, size: int) -> int:
    """The merged node with the likeliest path below the `size` chosen ones; -1: none."""
    nodes, p_accept = int32_rows(core, NODES), float64_rows(core, CHANCES)[0]
    chosen, rank = int32_line(core, CHOSEN), int32_line(core, RANK)
    path_p, token, parent = float64_line(core, PATH_P), nodes[0], nodes[1]
    best, best_p = -1, 0.0
    for place in range(size):
        node = nodes[2, chosen[place]]
        while node >= 0:
            if rank[node] < 0:
                path_p[node] = path_p[parent[node]] * p_accept[node]
                # Equal paths: the lower token, so that the order never depends on the sources'.
                tied = path_p[node] == best_p and token[node] < token[best]
                if path_p[node] > best_p or tied:
                    best, best_p = node, path_p[node]
            node = nodes[3, node]
    return best


@inner_kernel
def likeliest(core: int, most: int) -> int:
    """Write the `most` likeliest merged nodes, by the probability of their whole path, to the tree
    that is proposed; return how many there are. Every prefix of the result is a tree.
    """
    nodes, p_accept = int32_rows(core, NODES), float64_rows(core, CHANCES)[0]
    chosen, rank = int32_line(core, CHOSEN), int32_line(core, RANK)
    tokens, parents = int32_line(core, TREE_TOKENS), int16_line(core, TREE_PARENTS)
    given, sources = float32_line(core, TREE_CHANCES), uint8_line(core, TREE_SOURCES)
    count = word(core, NUM_MERGED)
    tokens[0], parents[0], given[0], sources[0] = word(core, LAST), -1, 1.0, 0
    if count == 0:
        return 1
    price(core)
    float64_line(core, PATH_P)[0], rank[0], chosen[0] = 1.0, 0, 0
    size = 1
    while size < min(most, count):
        best = next_best(core, size)
        if best < 0:
            break
        chosen[size], rank[best] = best, size
        tokens[size], parents[size] = nodes[0, best], rank[nodes[1, best]]
        given[size], sources[size] = p_accept[best], nodes[4, best]
        size += 1
    return size


@inner_kernel
def record_merged(core: int, new_tokens: NDArray[np.int32], credit: NDArray[np.int64]) -> None:
    """Count nodes whose parents were right, for agreement or for the one source that proposed them;
    credit each right token that was among the likeliest to the first source that said it, by its
    number.
    """
    nodes, chances = int32_rows(core, NODES), float64_rows(core, CHANCES)
    table, rank = float64_block(core, STATISTICS), int32_line(core, RANK)
    node = 0
    for depth in range(1, len(new_tokens) + 1):
        follower, other = -1, nodes[2, node]
        while other >= 0:
            hit = nodes[0, other] == new_tokens[depth - 1]
            source = AGREED if chances[2, other] > 1.0 else int(nodes[5, other])
            record(table, source, chances[4, other], depth, hit)
            if hit:
                follower = other
                if rank[other] >= 0:
                    credit[nodes[5, other]] += 1
            other = nodes[3, other]
        if follower < 0:
            return
        node = follower


@kernel("int64", "int32[:]", "int16[:]", "float32[:]", "int64", "int64")
def add_to(
    core: int,
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    p_accept: NDArray[np.float32],
    number: int,
    below: int,
) -> None:
    """Merge source `number`'s tree, its root being node `below` of the proposed tree."""
    set_word(
        core,
        NUM_MERGED,
        add_tree(
            float64_block(core, STATISTICS),
            tokens,
            parents,
            p_accept,
            number,
            int32_rows(core, NODES),
            float64_rows(core, CHANCES),
            int32_line(core, PLACE),
            word(core, NUM_MERGED),
            int32_line(core, CHOSEN)[below],
        ),
    )


@kernel("int64", "int64", result="int64")
def choose(core: int, most: int) -> int:
    """`likeliest`, for a market that has merged everything."""
    return likeliest(core, most)


class MergedTree:
    """The buffers of one tree grown out of many, where the kernels of a market find them."""

    def __init__(self, core: AddressTable, table: NDArray[np.float64]) -> None:
        self._core = core
        core.bind(STATISTICS, table)
        core.words[NUM_MERGED] = 0
        self._buffers: tuple[NDArray[Any], ...] = ()
        self.reserve(128, 32)

    def reserve(self, num_merged: int, num_chosen: int) -> None:
        """Make room for so many nodes of all sources, and for so many to be chosen."""
        self._core.words[NUM_MERGED] = 0
        merged: dict[int, NDArray[Any]] = {
            NODES: np.zeros((6, num_merged), np.int32),
            CHANCES: np.zeros((5, num_merged), np.float64),
            PLACE: np.zeros(num_merged, np.int32),
            PATH_P: np.zeros(num_merged, np.float64),
            RANK: np.zeros(num_merged, np.int32),
            CHOSEN: np.zeros(num_chosen, np.int32),
        }
        tokens, parents = np.zeros(num_chosen, np.int32), np.zeros(num_chosen, np.int16)
        p_accept, sources = np.zeros(num_chosen, np.float32), np.zeros(num_chosen, np.uint8)
        tree: dict[int, NDArray[Any]] = {
            TREE_TOKENS: tokens, TREE_PARENTS: parents, TREE_CHANCES: p_accept,
            TREE_SOURCES: sources,
        }  # fmt: skip
        for place, buffer in (merged | tree).items():
            self._core.bind(place, buffer)
        self._buffers = (*merged.values(), *tree.values())
        whole = DraftTree(tokens, parents, p_accept, sources)
        self.trees = [whole.take(size) for size in range(num_chosen + 1)]
        """What is proposed, by its number of nodes; good until the next."""

    def add(self, tree: DraftTree, number: int, below: int = 0) -> None:
        """Merge a source's tree into this one, its root being node `below` of the `likeliest`."""
        add_to(self._core.address, tree.tokens, tree.parents, tree.p_accept, number, below)

    def likeliest(self, num_nodes: int) -> DraftTree:
        """The surest nodes, at most `num_nodes` with the root; good until the next."""
        return self.trees[choose(self._core.address, num_nodes)]

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)
