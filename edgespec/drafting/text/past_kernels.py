"""Earlier replies as one ring of tokens, in which the text's longest known suffix is looked up.

The ring int32 [capacity] holds pieces, each behind a NOBODY; a position counts all tokens ever
written, and what lies `capacity` behind the newest is gone. previous int32 [capacity]: for each
position, the one before it that the same SHORT tokens end at, -1 for none; short and long int32
[slots]: the newest position + 1 that so many tokens with this hash end at. Tokens are compared, so
hashes that collide cost time alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import (
    MATCH,
    STATE,
    is_waiting,
    num_waiting,
    push,
)
from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.followers import NOBODY, scatter
from edgespec.drafting.text.match_rates import LONGEST_MATCH, PRIORS, bucket_of
from edgespec.system.addresses import int32_line, int64_rows, set_word, word
from edgespec.system.jit import inner_kernel, kernel

RING, PREVIOUS, SHORTS, LONGS, FOUND, TOTAL = 0, 2, 4, 6, 8, 11
NUM_PAST_WORDS = TOTAL + 1
"""Words of a past's table; the last counts all tokens ever written."""
FOUND_TOKEN, FOUND_AT, FOUND_MATCH, FOUND_VOTES = range(4)
MOST_FOUND = 4
"""Different next tokens that one search may find: [MOST_FOUND, 4] int64, columns as above."""
SHORT, LONG = 3, 12
"""Tokens of the two keys: the chains of the short ones are walked, of the long ones the newest
place is known.
"""
FIRST_KIND = len(PRIORS)
"""Kinds of nodes from here on are matches with the past, by length."""
_MOST_LOOKED_AT = 16
_WORD = 0xFFFFFFFF


@inner_kernel
def token_before(text: NDArray[np.int32], end: int, path: NDArray[np.int32], back: int) -> int:
    """The token `back` places before the last of text[:end] and a path; NOBODY before the first."""
    if back < len(path):
        return int(path[len(path) - 1 - back])
    place = end - 1 - (back - len(path))
    return int(text[place]) if place >= 0 else NOBODY


@inner_kernel
def slot_of(
    text: NDArray[np.int32], end: int, path: NDArray[np.int32], num_tokens: int, num_slots: int
) -> int:
    """Where a head belongs to the last so many tokens; -1 where there are fewer."""
    mixed = np.int64(num_tokens)
    for back in range(num_tokens):
        token = token_before(text, end, path, back)
        if token < 0:
            return -1
        mixed = scatter((mixed + (np.int64(token) + 1) * 0x1E3779B1) & _WORD)
    return int((mixed * num_slots) >> 32)


@inner_kernel
def agreement(
    past: int, position: int, text: NDArray[np.int32], end: int, path: NDArray[np.int32], most: int
) -> int:
    """How many tokens, up to `most`, that end at a position of the past and at the text's end are
    the same.
    """
    ring = int32_line(past, RING)
    oldest = max(word(past, TOTAL) - len(ring), 0)
    most = min(most, position + 1 - oldest)
    place, same = position % len(ring), 0
    while same < most:
        token = ring[place]
        if token < 0 or token != token_before(text, end, path, same):
            break
        same += 1
        place = place - 1 if place > 0 else len(ring) - 1  # a division takes longer than all else
    return same


@inner_kernel
def weigh(
    past: int, position: int, text: NDArray[np.int32], end: int, path: NDArray[np.int32], count: int
) -> int:
    """Note what followed at a position, if enough before it agrees; return how many different
    tokens are noted.
    """
    ring, found = int32_line(past, RING), int64_rows(past, FOUND)
    if position + 1 >= word(past, TOTAL):
        return count
    match = agreement(past, position, text, end, path, LONGEST_MATCH)
    if match < SHORT:
        return count
    token = ring[(position + 1) % len(ring)]
    if token < 0:
        return count
    row, weakest = 0, 0
    while row < count and found[row, FOUND_TOKEN] != token:
        if found[row, FOUND_MATCH] < found[weakest, FOUND_MATCH]:
            weakest = row
        row += 1
    if row < count:  # an older place
        if match > found[row, FOUND_MATCH]:
            found[row, FOUND_AT], found[row, FOUND_MATCH] = position, match
            found[row, FOUND_VOTES] = 0
        found[row, FOUND_VOTES] += match == found[row, FOUND_MATCH]
        return count
    if count == len(found):
        if match <= found[weakest, FOUND_MATCH]:
            return count
        row = weakest
    found[row, FOUND_TOKEN], found[row, FOUND_AT] = token, position
    found[row, FOUND_MATCH], found[row, FOUND_VOTES] = match, 1
    return max(count, row + 1)


@inner_kernel
def look_up(past: int, text: NDArray[np.int32], end: int, path: NDArray[np.int32]) -> int:
    """Note what followed where the past agrees with the last tokens; return how many different
    tokens did, 0 for none.
    """
    ring, previous = int32_line(past, RING), int32_line(past, PREVIOUS)
    shorts, longs = int32_line(past, SHORTS), int32_line(past, LONGS)
    slot = slot_of(text, end, path, SHORT, len(shorts))
    oldest = max(word(past, TOTAL) - len(ring), 0)
    if slot < 0 or shorts[slot] <= oldest:
        return 0
    count, newest = 0, -1
    place = shorts[slot] - 1
    slot = slot_of(text, end, path, LONG, len(longs))
    if slot >= 0 and longs[slot] > oldest:
        newest = longs[slot] - 1
        count = weigh(past, newest, text, end, path, count)
    for _ in range(_MOST_LOOKED_AT):
        if place < oldest:
            break
        if place != newest:
            count = weigh(past, place, text, end, path, count)
        place = previous[place % len(ring)]
    return count


@inner_kernel
def longest_found(past: int, count: int) -> int:
    """The row of what was found with the longest match, of equals what was found most often."""
    found = int64_rows(past, FOUND)
    best = 0
    for row in range(1, count):
        match, longest = found[row, FOUND_MATCH], found[best, FOUND_MATCH]
        more = found[row, FOUND_VOTES] > found[best, FOUND_VOTES]
        if match > longest or (match == longest and more):
            best = row
    return best


@inner_kernel
def longest_match(past: int, count: int) -> int:
    """Of what was found, the longest match's length."""
    return int(int64_rows(past, FOUND)[longest_found(past, count), FOUND_MATCH])


@inner_kernel
def push_found(
    past: int,
    count: int,
    rates: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    left: float,
) -> float:
    """Let what was found wait below the root, the longest match first, unless it waits already;
    return what is left for others.
    """
    found = int64_rows(past, FOUND)
    siblings = num_waiting(places)
    for _ in range(count):
        row = longest_found(past, count)
        match = found[row, FOUND_MATCH]
        if match < SHORT:
            break
        equals = 0
        for other in range(count):
            if found[other, FOUND_MATCH] == match:
                equals += found[other, FOUND_VOTES]
        share = left * found[row, FOUND_VOTES] / equals
        kind = FIRST_KIND + bucket_of(match)
        token = int(found[row, FOUND_TOKEN])
        if not is_waiting(places, 0, siblings, token):
            p_accept = rates[kind, RATE] * share
            at = int(found[row, FOUND_AT]) + 1
            push(places, scores, token, 0, kind, at, match + 1, p_accept, share)
            left -= p_accept
        found[row, FOUND_MATCH] = 0
    return left


@inner_kernel
def push_next(
    past: int,
    rates: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    node: int,
) -> None:
    """Let what came next in the past wait below a node that is from there."""
    ring, position = int32_line(past, RING), places[node, STATE] + 1
    if position >= word(past, TOTAL):
        return
    token, match = ring[position % len(ring)], places[node, MATCH]
    if token >= 0:
        kind = FIRST_KIND + bucket_of(match)
        push(places, scores, token, node, kind, position, match + 1, rates[kind, RATE], 1.0)


@kernel("int64", "int32[:]", "int32[:]")
def write_piece(past: int, piece: NDArray[np.int32], nothing: NDArray[np.int32]) -> None:
    """Write a piece behind the newest, over the oldest."""
    ring, previous = int32_line(past, RING), int32_line(past, PREVIOUS)
    shorts, longs = int32_line(past, SHORTS), int32_line(past, LONGS)
    for place in range(len(piece)):
        position = word(past, TOTAL)
        ring[position % len(ring)] = piece[place]
        previous[position % len(ring)] = -1
        slot = slot_of(piece, place + 1, nothing, SHORT, len(shorts))
        if slot >= 0:
            previous[position % len(ring)] = shorts[slot] - 1
            shorts[slot] = position + 1
        slot = slot_of(piece, place + 1, nothing, LONG, len(longs))
        if slot >= 0:
            longs[slot] = position + 1
        set_word(past, TOTAL, position + 1)


@kernel("int64", "int32[:]", "int32[:]", result="bool")
def is_fresh(past: int, piece: NDArray[np.int32], nothing: NDArray[np.int32]) -> bool:
    """Whether the newer half of the past holds these tokens already."""
    longs, ring = int32_line(past, LONGS), int32_line(past, RING)
    slot = slot_of(piece, len(piece), nothing, LONG, len(longs))
    if slot < 0 or longs[slot] - 1 < word(past, TOTAL) - len(ring) // 2:
        return False
    same = agreement(past, longs[slot] - 1, piece, len(piece), nothing, len(piece))
    return same == len(piece)
