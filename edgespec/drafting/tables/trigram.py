"""Drafts from a trigram matrix, weighing what usually came against what is worth trying.

"Adaptive Draft-Verification for Efficient Large Language Model Decoding" (ADED): a matrix of which
tokens followed which two, updated by what the target wrote, stands in for the target; drafts are
searched in it with the rule of Monte Carlo tree search, PUCT, that adds to a token's value a bonus
for having been tried seldom. A value is how often the token was right when it was drafted here,
drawn to its share in the matrix. What the bonus promises too much is learnt like any other rate.

The matrix describes the model, so a new text keeps it; prompts, which others write, do not enter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import (
    PARENT,
    PATH,
    PATH_FLOOR,
    TOKEN,
    is_waiting,
    num_nodes,
    num_waiting,
    plant,
    push,
    take_best,
)
from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.counted import EVIDENCE, evidence, priors_by_order
from edgespec.drafting.tables.followers import (
    FIRST,
    TOTAL,
    count_text,
    find,
    keys_at_node,
    lengthen,
    row_for,
)
from edgespec.drafting.tables.table_drafter import TableDrafter, new_rows
from edgespec.drafting.tree import StepOutcome
from edgespec.system.jit import inner_kernel, kernel

_CANDIDATES = 4
"""Followers of one context that are weighed: the heaviest."""
_PRIOR_TRIALS = 4.0
"""Trials that a share in the matrix is worth."""
_CURIOSITY = 0.1
TRIED, RIGHT = TOTAL, FIRST


@inner_kernel
def key_of_trial(keys: NDArray[np.int64], token: int, last: int, before: int) -> tuple[int, int]:
    """The key of drafting `token` after `before` and `last`; -1 is the beginning of the text."""
    lengthen(keys, 0, token)
    lengthen(keys, 1, last)
    lengthen(keys, 2, before)
    return int(keys[2, 0]), int(keys[2, 1])


@inner_kernel
def before_of(
    tokens: NDArray[np.int32],
    parents: NDArray[np.signedinteger],
    node: int,
    tail: NDArray[np.int32],
) -> int:
    """The token before a node's."""
    return int(tokens[int(parents[node])]) if node > 0 else int(tail[-2])


@inner_kernel
def value_of(trials: NDArray[np.int32], trial: int, share: float, total: int) -> float:
    """PUCT: the value of a follower and its bonus."""
    tried = trials[trial, TRIED] if trial >= 0 else 0
    right = trials[trial, RIGHT] if trial >= 0 else 0
    value = (right + _PRIOR_TRIALS * share) / (tried + _PRIOR_TRIALS)
    return value + _CURIOSITY * share * math.sqrt(total) / (1.0 + tried)


@inner_kernel
def push_searched(
    rows: NDArray[np.int32],
    row: int,
    order: int,
    trials: NDArray[np.int32],
    rates: NDArray[np.float64],
    keys: NDArray[np.int64],
    values: NDArray[np.float64],
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    first: int,
    node: int,
    before: int,
    left: float,
) -> float:
    """Let a row's followers wait below `node` that none of the siblings from `first` on is;
    return the probability that is left for others.
    """
    num_ways = (rows.shape[1] - FIRST) // 2
    total = rows[row, TOTAL]
    whole = 0.0
    for way in range(_CANDIDATES):
        token = rows[row, FIRST + way]
        if token < 0:
            break
        share = rows[row, FIRST + num_ways + way] / total
        pick, check = key_of_trial(keys, token, places[node, TOKEN], before)
        values[way] = value_of(trials, find(trials, pick, check), share, total)
        whole += values[way]
    kind = order * EVIDENCE + evidence(total)
    given = left
    siblings = num_waiting(places)
    for way in range(_CANDIDATES):
        token = rows[row, FIRST + way]
        if token < 0:
            break
        if is_waiting(places, first, siblings, token):
            continue
        share = left * values[way] / max(whole, 1.0)
        p_accept = rates[kind, RATE] * share
        push(places, scores, token, node, kind, 0, 0, p_accept, share)
        given -= p_accept
    return given


@kernel
def grow_by_search(
    rows: NDArray[np.int32],
    trials: NDArray[np.int32],
    rates: NDArray[np.float64],
    keys: NDArray[np.int64],
    values: NDArray[np.float64],
    tail: NDArray[np.int32],
    max_nodes: int,
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> int:
    """Fill the tree, best path first; return its number of nodes with the root."""
    node = plant(places, scores, tail[-1], max_nodes)
    tokens, parents = places[:, TOKEN], places[:, PARENT]
    while node >= 0:
        left = 1.0
        first = num_waiting(places)
        before = before_of(tokens, parents, node, tail)
        for order in range(1, -1, -1):
            if left * scores[node, PATH] < PATH_FLOOR:
                break
            if keys_at_node(tokens, parents, node, tail, keys[: order + 1]) <= order:
                continue
            row = find(rows, keys[order, 0], keys[order, 1])
            if row >= 0:
                left = push_searched(
                    rows, row, order, trials, rates, keys, values, places, scores,
                    first, node, before, left,
                )  # fmt: skip
        node = take_best(places, scores)
    return num_nodes(places)


@kernel
def learn_trials(
    trials: NDArray[np.int32],
    keys: NDArray[np.int64],
    tail: NDArray[np.int32],
    tokens: NDArray[np.int32],
    parents: NDArray[np.signedinteger],
    num_nodes: int,
    new_tokens: NDArray[np.int32],
    now: int,
) -> None:
    """Count each drafted node whose parent was right as tried, and as right if it was."""
    node = 0
    for position in range(len(new_tokens)):
        follower = -1
        before = before_of(tokens, parents, node, tail)
        for child in range(node + 1, num_nodes):
            if parents[child] == node:
                pick, check = key_of_trial(keys, tokens[child], tokens[node], before)
                trial = row_for(trials, pick, check, now)
                trials[trial, RIGHT] = max(trials[trial, RIGHT], 0)
                trials[trial, TRIED] += 1
                if tokens[child] == new_tokens[position]:
                    trials[trial, RIGHT] += 1
                    follower = child
                if trials[trial, TRIED] >= 64:
                    trials[trial, TRIED] //= 2
                    trials[trial, RIGHT] //= 2
        if follower < 0:
            break
        node = follower


class TrigramDrafter(TableDrafter):
    """Proposes what the target wrote after the same two tokens, and what may be worth trying."""

    name = "trigram"
    follows = True
    orders = 3
    ways = 6
    part = 0.75
    priors = priors_by_order(2)

    def __init__(self, max_bytes: int = TableDrafter.default_bytes, *, source: int = 1) -> None:
        super().__init__(max_bytes, source=source)
        self._values = np.zeros(_CANDIDATES, np.float64)
        self._is_prompt = False
        self._trials = new_rows(max_bytes - super().size_bytes - self._values.nbytes, 1)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with these tokens as the text so far; the matrix stays."""
        self._is_prompt = True
        super().reset(tokens)
        self._is_prompt = False

    def _forget(self) -> None:
        """What follows two tokens is as true of the next text."""

    def _learn_text(self, text: NDArray[np.int32], begin: int) -> None:
        if not self._is_prompt:
            count_text(self._rows, self._keys[:2], text, begin, self._now)

    def _learn_outcome(self, outcome: StepOutcome) -> None:
        tree = outcome.tree
        learn_trials(
            self._trials, self._keys, self._tail, tree.tokens, tree.parents,
            len(tree), np.asarray(outcome.new_tokens, np.int32), self._now,
        )  # fmt: skip

    def _grow(self, max_nodes: int) -> int:
        return grow_by_search(
            self._rows,
            self._trials,
            self._rates,
            self._keys,
            self._values,
            self._tail,
            max_nodes,
            self._proposal.places,
            self._proposal.scores,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays: exact, at most `max_bytes`, and the same from the start."""
        return super().size_bytes + self._trials.nbytes + self._values.nbytes
