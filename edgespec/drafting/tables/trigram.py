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

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import OUTCOME_NEW, OUTCOME_PARENTS, OUTCOME_TOKENS, Kernels
from edgespec.drafting.proposal import (
    NOW,
    PARENT,
    PATH,
    PATH_FLOOR,
    PLACES,
    PROMPT,
    RATES,
    SCORES,
    TOKEN,
    is_waiting,
    num_waiting,
    push,
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
from edgespec.drafting.text_drafter import KEYS, ROWS, STORE, WINDOW, move_up, write_behind
from edgespec.system.addresses import (
    float64_line,
    float64_rows,
    int16_line,
    int32_line,
    int32_rows,
    int64_rows,
    word,
)
from edgespec.system.jit import entry, inner_kernel

_CANDIDATES = 4
"""Followers of one context that are weighed: the heaviest."""
_PRIOR_TRIALS = 4.0
"""Trials that a share in the matrix is worth."""
_CURIOSITY = 0.1
TRIED, RIGHT = TOTAL, FIRST
TRIALS, VALUES = STORE, STORE + 3
"""Words: how often followers were tried and right; scratch."""


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
def weigh(table: int, row: int, node: int, before: int) -> float:
    """The value of each of a row's heaviest followers, in the table's scratch; return their sum."""
    rows, trials = int32_rows(table, ROWS), int32_rows(table, TRIALS)
    keys, values = int64_rows(table, KEYS), float64_line(table, VALUES)
    last = int32_rows(table, PLACES)[node, TOKEN]
    weights = FIRST + (rows.shape[1] - FIRST) // 2
    total = rows[row, TOTAL]
    whole = 0.0
    for way in range(_CANDIDATES):
        token = rows[row, FIRST + way]
        if token < 0:
            break
        share = rows[row, weights + way] / total
        pick, check = key_of_trial(keys, token, last, before)
        values[way] = value_of(trials, find(trials, pick, check), share, total)
        whole += values[way]
    return whole


@inner_kernel
def push_searched(
    table: int, row: int, order: int, first: int, node: int, before: int, left: float
) -> float:
    """Let a row's followers wait below `node` that none of the siblings from `first` on is;
    return the probability that is left for others.
    """
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    rows, rates = int32_rows(table, ROWS), float64_rows(table, RATES)
    values = float64_line(table, VALUES)
    whole = weigh(table, row, node, before)
    kind = order * EVIDENCE + evidence(rows[row, TOTAL])
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


@entry
def expand_searched(table: int, node: int, _: int) -> int:
    """Let what followed a node's last two tokens wait, and then what followed the last one."""
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    rows, keys = int32_rows(table, ROWS), int64_rows(table, KEYS)
    tail = int32_line(table, WINDOW)[: len(keys)]
    tokens, parents = places[:, TOKEN], places[:, PARENT]
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
            left = push_searched(table, row, order, first, node, before, left)
    return 0


@entry
def feed_matrix(table: int, tokens: int, count: int) -> int:
    """Count what the target wrote; a prompt, which others did, is only read."""
    begin = write_behind(table, tokens, count)
    if word(table, PROMPT) == 0:
        text = int32_line(table, WINDOW)[: begin + count]
        keys = int64_rows(table, KEYS)[:2]
        count_text(int32_rows(table, ROWS), keys, text, begin, word(table, NOW))
    return move_up(table, count)


@inner_kernel
def learn_trials(
    table: int,
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    new_tokens: NDArray[np.int32],
) -> None:
    """Count each drafted node whose parent was right as tried, and as right if it was."""
    trials, keys = int32_rows(table, TRIALS), int64_rows(table, KEYS)
    tail = int32_line(table, WINDOW)[: len(keys)]
    node = 0
    for position in range(len(new_tokens)):
        follower = -1
        before = before_of(tokens, parents, node, tail)
        for child in range(node + 1, len(tokens)):
            if parents[child] == node:
                pick, check = key_of_trial(keys, tokens[child], tokens[node], before)
                trial = row_for(trials, pick, check, word(table, NOW))
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


@entry
def learn_outcome(table: int, outcome: int, _: int) -> int:
    """Count what a verified tree tried."""
    learn_trials(
        table,
        int32_line(outcome, OUTCOME_TOKENS),
        int16_line(outcome, OUTCOME_PARENTS),
        int32_line(outcome, OUTCOME_NEW),
    )
    return 0


class TrigramDrafter(TableDrafter):
    """Proposes what the target wrote after the same two tokens, and what may be worth trying."""

    name = "trigram"
    follows = True
    orders = 3
    ways = 6
    part = 0.75
    priors = priors_by_order(2)
    kernels = Kernels(expand_searched, feed_matrix, learn_outcome)
    callable_from_kernels = True

    def __init__(self, max_bytes: int = TableDrafter.default_bytes, *, source: int = 1) -> None:
        super().__init__(max_bytes, source=source)
        self._values = np.zeros(_CANDIDATES, np.float64)
        self._trials = new_rows(max_bytes - super().size_bytes - self._values.nbytes, 1)
        self.table.bind(VALUES, self._values)
        self.table.bind(TRIALS, self._trials)

    def _forget(self) -> None:
        """What follows two tokens is as true of the next text."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays: exact, at most `max_bytes`, and the same from the start."""
        return super().size_bytes + self._trials.nbytes + self._values.nbytes
