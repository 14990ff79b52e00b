"""Growing a tree from counted followers of contexts of several orders.

The longest context that is known speaks first; what it leaves over goes to the next shorter one, as
in prediction by partial matching ("Data Compression Using Adaptive Coding and Partial String
Matching", Cleary and Witten). A node's kind is the order of its context and how often that was
seen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import (
    PARENT,
    PATH,
    PATH_FLOOR,
    PLACES,
    RATES,
    SCORES,
    TOKEN,
    is_waiting,
    num_waiting,
    push,
)
from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.followers import FIRST, TOTAL, find, keys_at_node
from edgespec.drafting.text_drafter import KEYS, ROWS, WINDOW
from edgespec.system.addresses import float64_rows, int32_line, int32_rows, int64_rows
from edgespec.system.jit import entry, inner_kernel

EVIDENCE = 3
"""Kinds of one order: contexts seen once, two or three times, more often."""


def priors_by_order(orders: int) -> tuple[float, ...]:
    """How often the followers of contexts of 1, 2, ... tokens usually come again."""
    by_order = (0.15, 0.35, 0.5, 0.6, 0.66, 0.7, 0.74, 0.78)[:orders]
    return tuple(min(p * more, 0.95) for p in by_order for more in (0.8, 1.0, 1.2))


@inner_kernel
def evidence(total: int) -> int:
    """The class of a context that was seen `total` times."""
    if total <= 1:
        return 0
    return 1 if total <= 3 else 2


@inner_kernel
def num_votes(bits: int) -> int:
    """How many voters a set of bits holds."""
    votes = 0
    while bits > 0:
        bits &= bits - 1
        votes += 1
    return votes


@inner_kernel
def push_counted(
    rows: NDArray[np.int32],
    row: int,
    order: int,
    rates: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    first: int,
    node: int,
    left: float,
    are_votes: bool,
) -> float:
    """Let a row's followers wait below `node` that none of the siblings from `first` on is; return
    the probability that is left for others.

    A row says how often each follower was seen or, if `are_votes`, by whom, as bits.
    """
    num_ways = (rows.shape[1] - FIRST) // 2
    total = rows[row, TOTAL]
    given = left
    siblings = num_waiting(places)
    for way in range(num_ways):
        token = rows[row, FIRST + way]
        if token < 0:
            break
        if is_waiting(places, first, siblings, token):
            continue
        weight = rows[row, FIRST + num_ways + way]
        if are_votes:
            weight = num_votes(weight)
        kind = order * EVIDENCE + evidence(weight if are_votes else total)
        share = left * weight / total
        p_accept = rates[kind, RATE] * share
        push(places, scores, token, node, kind, 0, 0, p_accept, share)
        given -= p_accept
    return given


@inner_kernel
def expand_by_order(table: int, node: int, are_votes: bool) -> int:
    """Let what followed the contexts that end with a node wait, the longest context's first."""
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    rows, rates, keys = (
        int32_rows(table, ROWS), float64_rows(table, RATES), int64_rows(table, KEYS)
    )  # fmt: skip
    tail = int32_line(table, WINDOW)[: len(keys)]
    tokens, parents = places[:, TOKEN], places[:, PARENT]
    left = 1.0
    first = num_waiting(places)
    for order in range(keys_at_node(tokens, parents, node, tail, keys) - 1, -1, -1):
        if left * scores[node, PATH] < PATH_FLOOR:
            break
        row = find(rows, keys[order, 0], keys[order, 1])
        if row >= 0:
            left = push_counted(
                rows, row, order, rates, places, scores, first, node, left, are_votes
            )
    return 0


@entry
def expand_counted(table: int, node: int, _: int) -> int:
    """Let a node's counted followers wait."""
    return expand_by_order(table, node, False)


@entry
def expand_votes(table: int, node: int, _: int) -> int:
    """Let a node's followers wait, whose weights are sets of voters."""
    return expand_by_order(table, node, True)
