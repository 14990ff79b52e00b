"""A draft tree from a suffix automaton: continuations in order of their path's probability.

The best-first rule is DySpec's ("DySpec: Faster Speculative Decoding with Dynamic Token Tree
Structure"), with counts in place of a draft model. A node's probability is the rate at which
matches of its length were right, times its share among the match's followers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.automaton_kernels import (
    COUNT,
    HEAD,
    LAST,
    LAST_END,
    LENGTH,
    LINK,
    NEXT,
    TARGET,
    TOKEN,
)
from edgespec.drafting.match_rates import bucket_of, learn
from edgespec.jit import inner_kernel, kernel

FRONTIER = 256
"""Most nodes waiting to be taken."""
_MAX_FOLLOWERS = 64
"""Followers looked at, newest first: states of single frequent tokens have thousands."""
_PATH_FLOOR = 0.01
"""Paths less likely than this never pay."""
_NEWEST_BONUS = 1.0
"""What the latest occurrence's follower counts extra: text tends to repeat what it did last."""


@inner_kernel
def expand(
    states: NDArray[np.int32],
    edges: NDArray[np.int32],
    rates: NDArray[np.float64],
    state: int,
    match: int,
    parent: int,
    path_p: float,
    num_waiting: int,
    frontier: NDArray[np.int32],
    frontier_p: NDArray[np.float64],
) -> int:
    """Queue the followers of `state` as children of node `parent`; return how many nodes wait now.

    frontier rows: token, parent, state, match length, bucket; frontier_p rows: path, conditional,
    share.
    """
    while state > 0 and states[state, HEAD] < 0:
        state = states[state, LINK]
        match = min(match, states[state, LENGTH])
    if state <= 0:
        return num_waiting
    total = 0.0
    newest = -1
    newest_end = -1
    edge = states[state, HEAD]
    for _ in range(_MAX_FOLLOWERS):
        if edge < 0:
            break
        target = edges[edge, TARGET]
        total += states[target, COUNT]
        if states[target, LAST_END] > newest_end:
            newest_end = states[target, LAST_END]
            newest = edge
        edge = edges[edge, NEXT]
    bucket = bucket_of(match)
    edge = states[state, HEAD]
    for _ in range(_MAX_FOLLOWERS):
        if edge < 0 or num_waiting == FRONTIER:
            break
        target = edges[edge, TARGET]
        weight = states[target, COUNT] + (_NEWEST_BONUS if edge == newest else 0.0)
        share = weight / (total + _NEWEST_BONUS)
        p_accept = rates[bucket] * share
        if path_p * p_accept >= _PATH_FLOOR:
            frontier[num_waiting, 0] = edges[edge, TOKEN]
            frontier[num_waiting, 1] = parent
            frontier[num_waiting, 2] = target
            frontier[num_waiting, 3] = match + 1
            frontier[num_waiting, 4] = bucket
            frontier_p[num_waiting, 0] = path_p * p_accept
            frontier_p[num_waiting, 1] = p_accept
            frontier_p[num_waiting, 2] = share
            num_waiting += 1
        edge = edges[edge, NEXT]
    return num_waiting


@kernel
def propose_tree(
    states: NDArray[np.int32],
    edges: NDArray[np.int32],
    sizes: NDArray[np.int64],
    rates: NDArray[np.float64],
    max_nodes: int,
    frontier: NDArray[np.int32],
    frontier_p: NDArray[np.float64],
    nodes: NDArray[np.int32],
    node_p: NDArray[np.float64],
) -> int:
    """Fill the tree, best path first; return its number of nodes with the root.

    nodes rows: token, parent, bucket; node_p rows: conditional probability, share. The caller fills
    the root's token.
    """
    nodes[0, 1] = -1
    nodes[0, 2] = 0
    node_p[0, 0] = 1.0
    node_p[0, 1] = 1.0
    state = states[sizes[LAST], LINK]
    if state <= 0 or max_nodes < 1:
        return 1
    num_nodes = 1
    num_waiting = expand(
        states, edges, rates, state, states[state, LENGTH], 0, 1.0, 0, frontier, frontier_p
    )
    while num_waiting > 0:
        best = 0
        for i in range(1, num_waiting):
            if frontier_p[i, 0] > frontier_p[best, 0]:
                best = i
        nodes[num_nodes, 0] = frontier[best, 0]
        nodes[num_nodes, 1] = frontier[best, 1]
        nodes[num_nodes, 2] = frontier[best, 4]
        node_p[num_nodes, 0] = frontier_p[best, 1]
        node_p[num_nodes, 1] = frontier_p[best, 2]
        num_nodes += 1
        if num_nodes > max_nodes:
            break
        path_p = frontier_p[best, 0]
        state = frontier[best, 2]
        match = frontier[best, 3]
        num_waiting -= 1
        for column in range(5):
            frontier[best, column] = frontier[num_waiting, column]
        for column in range(3):
            frontier_p[best, column] = frontier_p[num_waiting, column]
        num_waiting = expand(
            states,
            edges,
            rates,
            state,
            match,
            num_nodes - 1,
            path_p,
            num_waiting,
            frontier,
            frontier_p,
        )
    return num_nodes


@kernel
def learn_from(
    nodes: NDArray[np.int32],
    node_p: NDArray[np.float64],
    num_nodes: int,
    new_tokens: NDArray[np.int32],
    table: NDArray[np.float64],
    rates: NDArray[np.float64],
) -> None:
    """Compare a proposal with the tokens that came and update the rates of its match lengths."""
    node = 0
    for position in range(len(new_tokens)):
        follower = -1
        for child in range(node + 1, num_nodes):
            if nodes[child, 1] == node:
                hit = nodes[child, 0] == new_tokens[position]
                learn(table, rates, nodes[child, 2], node_p[child, 1], hit)
                if hit:
                    follower = child
        if follower < 0:
            break
        node = follower
