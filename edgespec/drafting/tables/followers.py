"""What followed each context, in a hash table of fixed size.

rows int32 [4 * sets, 3 + 2 * ways]: check (0: empty), when it was last written, sum of weights,
then the followers, heaviest first, then their weights. A context's row is one of the four of its
set; when all are taken, the one that was not written for longest makes room. So the table never
grows, and old text fades where room is short.

A context is the last n tokens; its key is two hashes: one picks the set, one is the check. Tokens
must lie in 0 .. 2**30; a negative one stands for the beginning of the text, beyond which no context
reaches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import inner_kernel, kernel

CHECK, STAMP, TOTAL, FIRST = 0, 1, 2, 3
SET_ROWS = 4
NOBODY = -1
"""No row, or no follower."""
_WORD = 0xFFFFFFFF
_HEAVIEST = 1 << 20
"""Weights are halved when their sum gets here."""


@inner_kernel
def scatter(value: Any) -> Any:
    """A bijection of 32-bit words in which every input bit reaches every output bit."""
    value ^= value >> 16
    value = (value * 0x7FEB352D) & _WORD
    value ^= value >> 15
    value = (value * 0x2C1B3C6D) & _WORD
    return value ^ (value >> 16)


@inner_kernel
def lengthen(keys: NDArray[np.int64], order: int, token: int) -> None:
    """The key of a context one token longer at its old end: keys[order] from keys[order - 1].

    keys int64 [orders, 2]; row n belongs to the last n + 1 tokens.
    """
    pick = keys[order - 1, 0] if order > 0 else np.int64(0x3C6EF372)
    check = keys[order - 1, 1] if order > 0 else np.int64(0x1B873593)
    keys[order, 0] = scatter((pick + (np.int64(token) + 1) * 0x1E3779B1) & _WORD)
    keys[order, 1] = scatter((check + (np.int64(token) + 1) * 0x5851F42D) & _WORD)


@inner_kernel
def keys_in_text(text: NDArray[np.int32], end: int, keys: NDArray[np.int64]) -> int:
    """The keys of the contexts before text[end]; return how many orders there are."""
    for order in range(len(keys)):
        place = end - 1 - order
        if place < 0 or text[place] < 0:
            return order
        lengthen(keys, order, text[place])
    return len(keys)


@inner_kernel
def keys_at_node(
    tokens: NDArray[np.int32],
    parents: NDArray[np.signedinteger],
    node: int,
    tail: NDArray[np.int32],
    keys: NDArray[np.int64],
) -> int:
    """The keys of the contexts that end with a node of a tree; tail[-1] is the root's token."""
    place = len(tail) - 1
    for order in range(len(keys)):
        if node > 0:
            token = tokens[node]
            node = int(parents[node])
        elif place >= 0:
            token = tail[place]
            place -= 1
        else:
            return order
        if token < 0:
            return order
        lengthen(keys, order, token)
    return len(keys)


@inner_kernel
def find(rows: NDArray[np.int32], pick: int, check: int) -> int:
    """The row of a context, or NOBODY."""
    wanted = (check >> 1) | 1
    base = ((pick * (len(rows) // SET_ROWS)) >> 32) * SET_ROWS
    for row in range(base, base + SET_ROWS):
        if rows[row, CHECK] == wanted:
            return int(row)
    return NOBODY


@inner_kernel
def row_for(rows: NDArray[np.int32], pick: int, check: int, now: int) -> int:
    """The row of a context, made if need be, stamped `now`."""
    wanted = (check >> 1) | 1
    base = ((pick * (len(rows) // SET_ROWS)) >> 32) * SET_ROWS
    oldest = base
    for row in range(base, base + SET_ROWS):
        if rows[row, CHECK] == wanted:
            rows[row, STAMP] = now
            return int(row)
        if rows[row, CHECK] == 0:
            oldest = row
            break
        if rows[row, STAMP] < rows[oldest, STAMP]:
            oldest = row
    num_ways = (rows.shape[1] - FIRST) // 2
    rows[oldest, CHECK] = wanted
    rows[oldest, STAMP] = now
    rows[oldest, TOTAL] = 0
    for way in range(num_ways):
        rows[oldest, FIRST + way] = NOBODY
        rows[oldest, FIRST + num_ways + way] = 0
    return int(oldest)


@inner_kernel
def count(rows: NDArray[np.int32], row: int, token: int, weight: int) -> None:
    """`token` followed the row's context: of equal weights the latest is first, and a newcomer
    takes the place of the last.
    """
    num_ways = (rows.shape[1] - FIRST) // 2
    weights = FIRST + num_ways
    if rows[row, TOTAL] >= _HEAVIEST:
        rows[row, TOTAL] //= 2
        for way in range(num_ways):
            rows[row, weights + way] //= 2
    rows[row, TOTAL] += weight
    way = 0
    while way < num_ways - 1 and rows[row, FIRST + way] >= 0 and rows[row, FIRST + way] != token:
        way += 1
    if rows[row, FIRST + way] == token:
        weight += rows[row, weights + way]
    while way > 0 and rows[row, weights + way - 1] <= weight:
        rows[row, FIRST + way] = rows[row, FIRST + way - 1]
        rows[row, weights + way] = rows[row, weights + way - 1]
        way -= 1
    rows[row, FIRST + way] = token
    rows[row, weights + way] = weight


@inner_kernel
def says_nothing(logits: NDArray[np.float32]) -> bool:
    """Whether a node's likeliest tokens are all alike: so it is where a log does not tell."""
    return len(logits) > 1 and logits[0] == logits[len(logits) - 1]


@kernel("int32[:,:]", "int64[:,:]", "int32[:]", "int64", "int64")
def count_text(
    rows: NDArray[np.int32],
    keys: NDArray[np.int64],
    text: NDArray[np.int32],
    begin: int,
    now: int,
) -> None:
    """Count each token of text[begin:] as a follower of the contexts before it, of all orders."""
    for end in range(begin, len(text)):
        for order in range(keys_in_text(text, end, keys)):
            row = row_for(rows, keys[order, 0], keys[order, 1], now + end - begin)
            count(rows, row, text[end], 1)
