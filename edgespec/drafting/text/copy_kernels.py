"""Following a text that is copied from another with changes.

source int32 [capacity]: the text to copy from; previous int32 [capacity]: for each position, the
one before it at which the same two tokens end; heads int32 [slots]: the newest of those, 0 for
none, else the position + 1. state int64 [4]: tokens in the source; where the copy goes on, or -1;
tokens copied in a row; tokens since the copy was lost, 0 while it is not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import (
    MATCH,
    PLACES,
    PROMPT,
    RATES,
    SCORES,
    STATE,
    is_waiting,
    num_waiting,
    push,
)
from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.followers import scatter
from edgespec.drafting.text.match_rates import PRIORS as MATCH_PRIORS
from edgespec.drafting.text.match_rates import bucket_of
from edgespec.drafting.text_drafter import STORE, WINDOW, move_up, write_behind
from edgespec.system.addresses import (
    float64_rows,
    int32_line,
    int32_rows,
    int64_line,
    set_word,
    word,
)
from edgespec.system.jit import entry, inner_kernel

LENGTH, CURSOR, RUN, LOST = 0, 1, 2, 3
SOURCE, PREVIOUS, HEADS, COPY_STATE, NUM_SKIPPED = range(STORE, STORE + 15, 3)
"""Words of the drafter's table; the last holds how many of the prompt's tokens have no room."""
REPLACED, INSERTED, DROPPED = range(len(MATCH_PRIORS), len(MATCH_PRIORS) + 3)
"""Kinds of the first nodes after a mismatch: what came stands for a token of the source, stands
between two, or stands for two.
"""
PRIORS = (*MATCH_PRIORS, 0.35, 0.15, 0.1)
_AHEAD = 12
_BEHIND = 4
"""How far from where it would be a lost copy is looked for by a single token."""
_GIVE_UP = 24
"""A copy that is lost for so many tokens is over."""
MOST_AGREEING = 16
"""Tokens compared to judge a place."""
_MOST_OCCURRENCES = 16
_LEAST_JUMP = 3
"""Tokens that must agree for a copy to go on at a distant place."""


@inner_kernel
def _slot(one: int, two: int, num_slots: int) -> int:
    mixed = scatter((np.int64(one) + 1) & 0xFFFFFFFF)
    mixed = scatter((mixed + (np.int64(two) + 1) * 0x1E3779B1) & 0xFFFFFFFF)
    return int((mixed * num_slots) >> 32)


@inner_kernel
def read(
    source: NDArray[np.int32],
    previous: NDArray[np.int32],
    heads: NDArray[np.int32],
    state: NDArray[np.int64],
    text: NDArray[np.int32],
    begin: int,
) -> None:
    """Add text[begin:] to the source, which must have room."""
    for place in range(begin, len(text)):
        position = state[LENGTH]
        source[position] = text[place]
        previous[position] = 0
        if position > 0:
            slot = _slot(source[position - 1], source[position], len(heads))
            previous[position] = heads[slot]
            heads[slot] = position + 1
        state[LENGTH] = position + 1


@inner_kernel
def agreement(source: NDArray[np.int32], position: int, text: NDArray[np.int32], end: int) -> int:
    """How many tokens that end at source[position] and at text[end - 1] are the same."""
    same = 0
    while (
        same < MOST_AGREEING
        and position - same >= 0
        and end - 1 - same >= 0
        and source[position - same] == text[end - 1 - same]
    ):
        same += 1
    return same


@inner_kernel
def find_near(
    source: NDArray[np.int32], state: NDArray[np.int64], text: NDArray[np.int32], end: int
) -> tuple[int, int]:
    """Where near the lost copy the text's end is, and how much agrees there: the best agreement,
    of equals the nearest to where the copy would be had tokens been replaced.
    """
    expected = state[CURSOR] + state[LOST] - 1
    best, best_same = -1, 0
    first = max(expected - _BEHIND - state[LOST], 0)
    for position in range(first, min(expected + _AHEAD + 1, state[LENGTH] - 1)):
        same = agreement(source, position, text, end)
        if same > best_same or (
            same == best_same and same > 0 and abs(position - expected) < abs(best - expected)
        ):
            best, best_same = position, same
    return best, best_same


@inner_kernel
def find_anywhere(
    source: NDArray[np.int32],
    previous: NDArray[np.int32],
    heads: NDArray[np.int32],
    state: NDArray[np.int64],
    text: NDArray[np.int32],
    end: int,
) -> tuple[int, int]:
    """Where in the source the text's last two tokens are, with the best agreement, newest first."""
    best, best_same = -1, 1
    if end < 2 or text[end - 2] < 0:
        return -1, 0
    position = heads[_slot(text[end - 2], text[end - 1], len(heads))] - 1
    for _ in range(_MOST_OCCURRENCES):
        if position < 0:
            break
        if position + 1 < state[LENGTH]:
            same = agreement(source, position, text, end)
            if same > best_same:
                best, best_same = position, same
        position = previous[position] - 1
    return best, best_same


@inner_kernel
def follow(
    source: NDArray[np.int32],
    previous: NDArray[np.int32],
    heads: NDArray[np.int32],
    state: NDArray[np.int64],
    text: NDArray[np.int32],
    begin: int,
) -> None:
    """The copy grew by text[begin:]: go along, or find the place again."""
    for place in range(begin, len(text)):
        cursor = state[CURSOR]
        if 0 <= cursor < state[LENGTH] and state[LOST] == 0 and source[cursor] == text[place]:
            state[CURSOR] = cursor + 1
            state[RUN] += 1
            continue
        best, same = -1, 0
        if cursor >= 0:
            state[LOST] += 1
            best, same = find_near(source, state, text, place + 1)
        if same < _LEAST_JUMP:
            far, far_same = find_anywhere(source, previous, heads, state, text, place + 1)
            if far_same >= (_LEAST_JUMP if cursor >= 0 else 2) and far_same > same:
                best, same = far, far_same
        if best >= 0:
            state[CURSOR] = best + 1
            state[RUN] = same + state[RUN] // 4
            state[LOST] = 0
        elif state[LOST] > _GIVE_UP:
            state[CURSOR] = -1
            state[RUN] = 0
            state[LOST] = 0


@inner_kernel
def push_copy(
    source: NDArray[np.int32],
    state: NDArray[np.int64],
    rates: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    node: int,
    position: int,
    match: int,
    kind: int,
    left: float,
) -> float:
    """Let source[position] wait below `node`, if it exists and is not there yet; return what is
    left for others.
    """
    if position < 0 or position >= state[LENGTH]:
        return left
    if node == 0 and is_waiting(places, 0, num_waiting(places), source[position]):
        return left
    p_accept: float = left * rates[kind, RATE]
    push(places, scores, source[position], node, kind, position + 1, match + 1, p_accept, left)
    return left - p_accept


@inner_kernel
def push_ways_on(
    source: NDArray[np.int32],
    state: NDArray[np.int64],
    rates: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> None:
    """Let what may come next wait below the root."""
    cursor, run, lost, left = state[CURSOR], state[RUN], state[LOST], 1.0
    if lost == 0:
        push_copy(source, state, rates, places, scores, 0, cursor, run, bucket_of(run), left)
        return
    for kind, position in (
        (REPLACED, cursor + lost), (INSERTED, cursor), (DROPPED, cursor + lost + 1)
    ):  # fmt: skip
        left = push_copy(source, state, rates, places, scores, 0, position, run // 4, kind, left)


@entry
def expand_copy(table: int, node: int, _: int) -> int:
    """Let what comes after a node in the source wait."""
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    source, state = int32_line(table, SOURCE), int64_line(table, COPY_STATE)
    rates = float64_rows(table, RATES)
    if node > 0:
        position, match = places[node, STATE], places[node, MATCH]
        push_copy(
            source, state, rates, places, scores, node, position, match, bucket_of(match), 1.0
        )
    elif state[CURSOR] >= 0:
        push_ways_on(source, state, rates, places, scores)
    return 0


@entry
def feed_copy(table: int, tokens: int, count: int) -> int:
    """Read the prompt, or go along with the copy."""
    source, state = int32_line(table, SOURCE), int64_line(table, COPY_STATE)
    previous, heads = int32_line(table, PREVIOUS), int32_line(table, HEADS)
    begin = write_behind(table, tokens, count)
    text = int32_line(table, WINDOW)[: begin + count]
    if word(table, PROMPT) == 0:
        follow(source, previous, heads, state, text, begin)
    else:
        skipped = min(word(table, NUM_SKIPPED), count)
        set_word(table, NUM_SKIPPED, word(table, NUM_SKIPPED) - skipped)
        read(source, previous, heads, state, text, begin + skipped)
    return move_up(table, count)
