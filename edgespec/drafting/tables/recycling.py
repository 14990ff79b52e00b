"""Drafts from the target's own runners-up, by the token they followed last time.

"Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling".
For every verified node, rejected ones too, the target's likeliest next tokens replace what was
known to follow that token. The paper's tree has 80 places of fixed shape; this one grows best path
first by how often each rank was right, to as many nodes as are asked for.

The adjacency is a property of the model, not of one text, so a new text keeps it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import Kernels
from edgespec.drafting.proposal import (
    PATH,
    PATH_FLOOR,
    PLACES,
    RATES,
    SCORES,
    TOKEN,
    push,
)
from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.followers import FIRST, find, lengthen, row_for, says_nothing
from edgespec.drafting.tables.table_drafter import TableDrafter, feed_nothing
from edgespec.drafting.text_drafter import KEYS, ROWS
from edgespec.drafting.tree import StepOutcome
from edgespec.system.addresses import float64_rows, int32_rows, int64_rows
from edgespec.system.jit import entry, inner_kernel, kernel

RANKS = 8
_PRIORS = (0.4, 0.12, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01)


@kernel("int32[:,:]", "int64[:,:]", "int32[:]", "int32[:,:]", "float32[:,:]", "int64")
def remember_tops(
    rows: NDArray[np.int32],
    keys: NDArray[np.int64],
    tokens: NDArray[np.int32],
    tops: NDArray[np.int32],
    logits: NDArray[np.float32],
    now: int,
) -> None:
    """The followers of each of `tokens` [n] are its row of `tops` [n, k], whose logits are alike in
    shape, from now on; where these are all the same, nothing is known.

    Where a token is at several nodes, the likelier node, which is the earlier one, has the last
    word.
    """
    num_ways = (rows.shape[1] - FIRST) // 2
    for node in range(len(tokens) - 1, -1, -1):
        if says_nothing(logits[node]):
            continue
        lengthen(keys, 0, tokens[node])
        row = row_for(rows, keys[0, 0], keys[0, 1], now)
        for rank in range(min(num_ways, tops.shape[1])):
            rows[row, FIRST + rank] = tops[node, rank]


@inner_kernel
def push_ranks(
    rows: NDArray[np.int32],
    row: int,
    rates: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    node: int,
) -> None:
    """Let a row's followers wait as children of `node`."""
    num_ways = (rows.shape[1] - FIRST) // 2
    for rank in range(num_ways):
        token = rows[row, FIRST + rank]
        if token < 0 or scores[node, PATH] * rates[rank, RATE] < PATH_FLOOR:
            break
        push(places, scores, token, node, rank, 0, 0, rates[rank, RATE], 1.0)


@entry
def expand_ranks(table: int, node: int, _: int) -> int:
    """Let a node's ranked followers wait."""
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    rows, keys = int32_rows(table, ROWS), int64_rows(table, KEYS)
    lengthen(keys, 0, places[node, TOKEN])
    row = find(rows, keys[0, 0], keys[0, 1])
    if row >= 0:
        push_ranks(rows, row, float64_rows(table, RATES), places, scores, node)
    return 0


class RecyclingDrafter(TableDrafter):
    """Proposes what the target thought likely after the same token before."""

    name = "recycling"
    wants_top = RANKS
    orders = 1
    ways = RANKS
    priors = _PRIORS
    kernels = Kernels(expand_ranks, feed_nothing)
    is_shared = True

    def _forget(self) -> None:
        """What follows a token is as true of the next text."""

    def observe(self, outcome: StepOutcome) -> None:
        """Learn how often each rank was right, and the target's likeliest tokens at each node."""
        super().observe(outcome)
        if outcome.top is not None:
            remember_tops(
                self._rows, self._keys, outcome.tree.tokens, outcome.top.tokens,
                outcome.top.logits, self._now,
            )  # fmt: skip
            self._now += 1
