"""An online suffix automaton in flat arrays.

"The Smallest Automaton Recognizing the Subwords of a Text" (Blumer et al.), in the online form of
SAM Decoding's appendix. A text of n tokens has at most 2n states and 3n transitions, so arrays of
that size never overflow. Transitions hang on their state as a list, newest first, and are found by
an open-addressing table of (state, token).

states int32 [2n + 1, 5]: suffix link, length of the longest string, first transition, times seen,
last end position; edges int32 [3n, 4]: state, token, target, next transition of the state; slots
int32 [5n]: edge + 1, or 0; sizes int64 [4].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import OWN
from edgespec.system.addresses import int32_line, int32_rows, int32s_at, int64_line
from edgespec.system.jit import entry, inner_kernel, kernel

LINK, LENGTH, HEAD, COUNT, LAST_END = 0, 1, 2, 3, 4
FROM, TOKEN, TARGET, NEXT = 0, 1, 2, 3
NUM_STATES, NUM_EDGES, LAST, NUM_TOKENS = 0, 1, 2, 3
TEXT, STATES, EDGES, SLOTS, SIZES = range(OWN, OWN + 15, 3)
PAST = OWN + 15
"""Words of the drafter's table; the last is the address of the table of a past, or 0."""

STATES_PER_TOKEN = 2
EDGES_PER_TOKEN = 3
SLOTS_PER_TOKEN = 5
BYTES_PER_TOKEN = 4 * (1 + 5 * STATES_PER_TOKEN + 4 * EDGES_PER_TOKEN + SLOTS_PER_TOKEN)

_NUM_TOUCHED = 8
"""Suffixes that count an occurrence: touching all would cost O(n) per token on periodic text."""
_WORD = 0xFFFFFFFF


@inner_kernel
def slot_of(state: int, token: int, num_slots: int) -> int:
    """Where the search for a transition begins."""
    mixed = (np.int64(state) * 0x9E3779B1 + np.int64(token) * 0x85EBCA77) & _WORD
    mixed ^= mixed >> 15
    mixed = (mixed * 0x2C1B3C6D) & _WORD
    mixed ^= mixed >> 13
    return int((mixed * num_slots) >> 32)


@kernel("int32[:,:]", "int32[:]", "int64", "int64", result="int64")
def find_edge(edges: NDArray[np.int32], slots: NDArray[np.int32], state: int, token: int) -> int:
    """The transition of `state` by `token`, or -1."""
    slot = slot_of(state, token, len(slots))
    while slots[slot] != 0:
        edge: int = slots[slot] - 1
        if edges[edge, FROM] == state and edges[edge, TOKEN] == token:
            return edge
        slot += 1
        if slot == len(slots):
            slot = 0
    return -1


@inner_kernel
def match_after(
    states: NDArray[np.int32],
    edges: NDArray[np.int32],
    slots: NDArray[np.int32],
    sizes: NDArray[np.int64],
    path: NDArray[np.int32],
) -> tuple[int, int]:
    """The state and length of the longest suffix of the text and a path that occurred before."""
    state = states[sizes[LAST], LINK]
    match = states[state, LENGTH] if state > 0 else 0
    for token in path:
        edge = find_edge(edges, slots, state, token)
        while edge < 0 and state > 0:
            state = states[state, LINK]
            match = states[state, LENGTH]
            edge = find_edge(edges, slots, state, token)
        state, match = (edges[edge, TARGET], match + 1) if edge >= 0 else (0, 0)
    return int(state), int(match)


@inner_kernel
def add_edge(
    states: NDArray[np.int32],
    edges: NDArray[np.int32],
    slots: NDArray[np.int32],
    sizes: NDArray[np.int64],
    state: int,
    token: int,
    target: int,
) -> None:
    """Add a transition that is not there yet, as the newest of its state."""
    edge = sizes[NUM_EDGES]
    sizes[NUM_EDGES] = edge + 1
    edges[edge, FROM] = state
    edges[edge, TOKEN] = token
    edges[edge, TARGET] = target
    edges[edge, NEXT] = states[state, HEAD]
    states[state, HEAD] = edge
    slot = slot_of(state, token, len(slots))
    while slots[slot] != 0:
        slot += 1
        if slot == len(slots):
            slot = 0
    slots[slot] = edge + 1


@inner_kernel
def split(
    states: NDArray[np.int32],
    edges: NDArray[np.int32],
    slots: NDArray[np.int32],
    sizes: NDArray[np.int64],
    state: int,
    token: int,
    whole: int,
) -> int:
    """Clone `whole` for its strings that also end here, those reached from `state` by `token`."""
    clone: int = sizes[NUM_STATES]
    sizes[NUM_STATES] = clone + 1
    for field in range(states.shape[1]):  # copying a row compiles five times slower
        states[clone, field] = states[whole, field]
    states[clone, LENGTH] = states[state, LENGTH] + 1
    states[clone, HEAD] = -1
    edge = states[whole, HEAD]
    while edge >= 0:
        add_edge(states, edges, slots, sizes, clone, edges[edge, TOKEN], edges[edge, TARGET])
        edge = edges[edge, NEXT]
    states[whole, LINK] = clone
    while state >= 0:
        edge = find_edge(edges, slots, state, token)
        if edge < 0 or edges[edge, TARGET] != whole:
            break
        edges[edge, TARGET] = clone
        state = states[state, LINK]
    return clone


@inner_kernel
def append(
    states: NDArray[np.int32],
    edges: NDArray[np.int32],
    slots: NDArray[np.int32],
    sizes: NDArray[np.int64],
    token: int,
    position: int,
) -> None:
    """Extend the text by one token."""
    state = sizes[LAST]
    new = sizes[NUM_STATES]
    sizes[NUM_STATES] = new + 1
    states[new, LENGTH] = states[state, LENGTH] + 1
    states[new, HEAD] = -1
    states[new, COUNT] = 1
    states[new, LAST_END] = position
    edge = find_edge(edges, slots, state, token)
    while edge < 0 and state >= 0:
        add_edge(states, edges, slots, sizes, state, token, new)
        state = states[state, LINK]
        if state >= 0:
            edge = find_edge(edges, slots, state, token)
    link = 0
    if state >= 0:
        link = edges[edge, TARGET]
        if states[state, LENGTH] + 1 != states[link, LENGTH]:
            link = split(states, edges, slots, sizes, state, token, link)
    states[new, LINK] = link
    sizes[LAST] = new
    for _ in range(_NUM_TOUCHED):
        if link <= 0:
            break
        states[link, COUNT] += 1
        states[link, LAST_END] = position
        link = states[link, LINK]


@entry
def feed_automaton(table: int, tokens: int, count: int) -> int:
    """Extend the automaton by so many tokens, for which there is room."""
    text, slots, sizes = (
        int32_line(table, TEXT), int32_line(table, SLOTS), int64_line(table, SIZES)
    )  # fmt: skip
    states, edges = int32_rows(table, STATES), int32_rows(table, EDGES)
    new = int32s_at(tokens, count)
    for place in range(count):
        position = sizes[NUM_TOKENS]
        text[position] = new[place]
        append(states, edges, slots, sizes, new[place], position)
        sizes[NUM_TOKENS] = position + 1
    return 0
