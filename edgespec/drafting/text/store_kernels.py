"""Looking up in a datastore what followed the longest part of the text's end that it knows.

text int32 [n]: the corpus, NOBODY before each file; order int32 [n]: all places of the text, sorted
by the tokens before them, the nearest first, up to LONGEST. So places after the same tokens are
neighbours, and the longest context that is known is next to where the text's own would be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import MATCH, STATE, is_waiting, num_waiting, push
from edgespec.drafting.rates import RATE
from edgespec.drafting.text.match_rates import bucket_of
from edgespec.system.addresses import int32_line, int64_rows, word
from edgespec.system.jit import inner_kernel

TEXT, ORDER, FOUND, VOCABULARY = 0, 2, 4, 7
NUM_STORE_WORDS = VOCABULARY + 1
"""Words of a store's table; the last is the size of the vocabulary."""
FOUND_TOKEN, FOUND_AT, FOUND_VOTES = range(3)
MOST_FOUND = 4
"""Different next tokens that one search may find: [MOST_FOUND, 3] int64, columns as above."""
LONGEST = 16
"""Tokens of the longest context."""
LEAST = 2
"""Shorter contexts say little about what a text will be."""
_MOST_LOOKED_AT = 8
"""Places looked at on either side of where the text's own context would be."""


@inner_kernel
def place_at(text: NDArray[np.int32], order: NDArray[np.int32], rank: int) -> int:
    """The place with this rank; the first one where the file was changed since it was checked."""
    place = int(order[rank])
    return place if 0 <= place < len(text) else 0


@inner_kernel
def num_known(tail: NDArray[np.int32]) -> int:
    """Tokens at the end of a line before the first that is none, LONGEST at most."""
    known = 0
    while known < min(len(tail), LONGEST) and tail[len(tail) - 1 - known] >= 0:
        known += 1
    return known


@inner_kernel
def agreement(text: NDArray[np.int32], place: int, tail: NDArray[np.int32], most: int) -> int:
    """How many tokens before a place, up to `most`, are those that a line ends with."""
    same = 0
    while same < most and same < place and text[place - 1 - same] == tail[len(tail) - 1 - same]:
        same += 1
    return same


@inner_kernel
def rank_of(
    text: NDArray[np.int32], order: NDArray[np.int32], tail: NDArray[np.int32], known: int
) -> int:
    """How many places come before the context of so many tokens that a line ends with."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        place = place_at(text, order, middle)
        same = agreement(text, place, tail, known)
        before = text[place - 1 - same] if same < place else -1
        if same < known and before < tail[len(tail) - 1 - same]:
            low = middle + 1
        else:
            high = middle
    return low


@inner_kernel
def note(store: int, place: int, count: int) -> int:
    """Count the token at a place; return how many different ones are noted."""
    found, token = int64_rows(store, FOUND), int32_line(store, TEXT)[place]
    if not 0 <= token < word(store, VOCABULARY):
        return count
    row = 0
    while row < count and found[row, FOUND_TOKEN] != token:
        row += 1
    if row < count:
        found[row, FOUND_VOTES] += 1
        return count
    if count < len(found):
        found[count, FOUND_TOKEN], found[count, FOUND_AT] = token, place
        found[count, FOUND_VOTES] = 1
        return count + 1
    return count


@inner_kernel
def search(store: int, tail: NDArray[np.int32]) -> tuple[int, int]:
    """Note what followed the longest context that a line ends with and the store knows; return how
    many different tokens did, and the context's length.
    """
    text, order = int32_line(store, TEXT), int32_line(store, ORDER)
    known = num_known(tail)
    if known < LEAST:
        return 0, 0
    rank = rank_of(text, order, tail, known)
    match = 0
    for other in range(max(rank - 1, 0), min(rank + 1, len(order))):
        match = max(match, agreement(text, place_at(text, order, other), tail, known))
    if match < LEAST:
        return 0, 0
    count = 0
    for other in range(rank, min(rank + _MOST_LOOKED_AT, len(order))):
        place = place_at(text, order, other)
        if agreement(text, place, tail, match) < match:
            break
        count = note(store, place, count)
    for other in range(rank - 1, max(rank - _MOST_LOOKED_AT, 0) - 1, -1):
        place = place_at(text, order, other)
        if agreement(text, place, tail, match) < match:
            break
        count = note(store, place, count)
    return count, match


@inner_kernel
def push_noted(
    store: int,
    count: int,
    first_kind: int,
    rates: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    left: float,
) -> float:
    """Let what a search noted wait below the root, unless it waits already; return what is left
    for others.
    """
    found, match = int64_rows(store, FOUND), places[0, MATCH]
    siblings, kind, given, votes = num_waiting(places), first_kind + bucket_of(match), left, 0
    for row in range(count):
        votes += found[row, FOUND_VOTES]
    for row in range(count):
        token = int(found[row, FOUND_TOKEN])
        if not is_waiting(places, 0, siblings, token):
            share = left * found[row, FOUND_VOTES] / votes
            p_accept = rates[kind, RATE] * share
            at = int(found[row, FOUND_AT])
            push(places, scores, token, 0, kind, at + 1, match + 1, p_accept, share)
            given -= p_accept
    return given


@inner_kernel
def push_following(
    store: int,
    first: int,
    node: int,
    first_kind: int,
    rates: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    left: float,
) -> float:
    """Let what comes next in the store wait below a node that is from there, unless one of the
    siblings from `first` on does; return what is left for others. Such a node's state is the place
    behind it.
    """
    text, place, match = int32_line(store, TEXT), places[node, STATE], places[node, MATCH]
    if place >= len(text) or not 0 <= text[place] < word(store, VOCABULARY):
        return left
    token = int(text[place])
    if is_waiting(places, first, num_waiting(places), token):
        return left
    kind = first_kind + bucket_of(match)
    p_accept = rates[kind, RATE] * left
    push(places, scores, token, node, kind, place + 1, match + 1, p_accept, left)
    return left - float(p_accept)
