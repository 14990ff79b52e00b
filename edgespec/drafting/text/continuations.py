"""A draft tree from a suffix automaton: what followed the match, and shorter matches below it.

A node's probability is the rate at which matches of its length were right, times its share among
the match's followers. What the followers of a match leave over goes to those of the next shorter
one, as in prediction by partial matching ("Data Compression Using Adaptive Coding and Partial
String Matching", Cleary and Witten).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import (
    KIND,
    MATCH,
    PATH,
    PATH_AT,
    PATH_FLOOR,
    PATH_LENGTH,
    PLACES,
    RATES,
    SCORES,
    STATE,
    is_waiting,
    num_waiting,
    push,
)
from edgespec.drafting.rates import RATE
from edgespec.drafting.text.automaton import (
    COUNT,
    EDGES,
    HEAD,
    LAST_END,
    LENGTH,
    LINK,
    NEXT,
    NUM_TOKENS,
    PAST,
    SIZES,
    SLOTS,
    STATES,
    TARGET,
    TEXT,
    match_after,
)
from edgespec.drafting.text.automaton import TOKEN as LABEL
from edgespec.drafting.text.match_rates import bucket_of
from edgespec.drafting.text.past_kernels import (
    FIRST_KIND,
    longest_match,
    look_up,
    push_found,
    push_next,
)
from edgespec.system.addresses import (
    float64_rows,
    int32_line,
    int32_rows,
    int32s_at,
    int64_line,
    word,
)
from edgespec.system.jit import entry, inner_kernel

_MAX_FOLLOWERS = 64
"""Followers looked at, newest first: states of single frequent tokens have thousands."""
_NEWEST_BONUS = 1.0
"""What the latest occurrence's follower counts extra: text tends to repeat what it did last."""
_LONGER = 8
"""Tokens by which the past's match must be longer to speak first: the text's own matches branch."""
_MOST_LEVELS = 3
"""Matches looked at for one node, the longest and shorter ones."""


@inner_kernel
def push_followers(
    states: NDArray[np.int32],
    edges: NDArray[np.int32],
    rates: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    first: int,
    parent: int,
    state: int,
    match: int,
    left: float,
) -> float:
    """Let the followers of `state` wait that none of the siblings from `first` on is; return the
    probability that is left for others.
    """
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
    given = left
    siblings = num_waiting(places)
    edge = states[state, HEAD]
    for _ in range(_MAX_FOLLOWERS):
        if edge < 0:
            break
        target = edges[edge, TARGET]
        weight = states[target, COUNT] + (_NEWEST_BONUS if edge == newest else 0.0)
        share = left * weight / (total + _NEWEST_BONUS)
        p_accept = rates[bucket, RATE] * share
        token = edges[edge, LABEL]
        if not is_waiting(places, first, siblings, token):
            push(places, scores, token, parent, bucket, target, match + 1, p_accept, share)
            given -= p_accept
        edge = edges[edge, NEXT]
    return given


@inner_kernel
def is_surer(rates: NDArray[np.float64], past_match: int, match: int) -> bool:
    """Whether the past, which agrees with much more than the text does, was right more often."""
    of_past = rates[FIRST_KIND + bucket_of(past_match), RATE]
    return past_match > match + _LONGER and of_past > rates[bucket_of(match), RATE]


@entry
def expand_match(table: int, node: int, _: int) -> int:
    """Let the continuations of a node's match wait; the root's is that of the text and the path
    that the tree is to follow. Where earlier replies have a longer match with these, theirs come
    first.
    """
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    states, edges = int32_rows(table, STATES), int32_rows(table, EDGES)
    rates = float64_rows(table, RATES)
    past, num_found, left = word(table, PAST), 0, 1.0
    if node == 0:
        slots, sizes = int32_line(table, SLOTS), int64_line(table, SIZES)
        path = int32s_at(word(table, PATH_AT), word(table, PATH_LENGTH))
        places[0, STATE], places[0, MATCH] = match_after(states, edges, slots, sizes, path)
        if past != 0:
            num_found = look_up(past, int32_line(table, TEXT), sizes[NUM_TOKENS], path)
    elif places[node, KIND] >= FIRST_KIND:
        push_next(past, rates, places, scores, node)
        return 0
    first = num_waiting(places)
    state, match = places[node, STATE], places[node, MATCH]
    if num_found > 0 and is_surer(rates, longest_match(past, num_found), match):
        left = push_found(past, num_found, rates, places, scores, left)
        num_found = 0
    levels = 0
    while state > 0 and levels < _MOST_LEVELS and scores[node, PATH] * left >= PATH_FLOOR:
        if states[state, HEAD] >= 0:
            levels += 1
            left = push_followers(
                states, edges, rates, places, scores, first, node, state, match, left
            )
        state = states[state, LINK]
        match = min(match, states[state, LENGTH])
    if num_found > 0 and left >= PATH_FLOOR:
        push_found(past, num_found, rates, places, scores, left)
    return 0
