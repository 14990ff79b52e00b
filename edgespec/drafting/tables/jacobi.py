"""Drafts from the target's own guesses at nodes that were not accepted.

"Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", section 3, and
"Accelerating Transformer Inference for Translation via Parallel Decoding" (Jacobi decoding). Every
node of a verified tree, right or wrong, has told what the target would say next. Those n-grams go
to a pool; and along the best branch that was rejected, the target's answers, moved behind the token
it chose instead, are the next iterate of a Jacobi iteration, which often is what comes. Lookahead
decoding spends passes on such guesses; these fall off the passes that were made anyway.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import Kernels
from edgespec.drafting.tables.counted import expand_counted, priors_by_order
from edgespec.drafting.tables.followers import count, keys_at_node, keys_in_text, row_for
from edgespec.drafting.tables.table_drafter import TableDrafter, feed_nothing
from edgespec.drafting.tree import StepOutcome
from edgespec.system.jit import kernel

_ORDERS = 3


@kernel("int32[:,:]", "int64[:,:]", "int32[:]", "int32[:]", "int16[:]", "int32[:]", "int64")
def learn_guesses(
    rows: NDArray[np.int32],
    keys: NDArray[np.int64],
    tail: NDArray[np.int32],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    guesses: NDArray[np.int32],
    now: int,
) -> None:
    """Count the target's guess [n] at each node as a follower of the contexts that end there, the
    likeliest nodes last.
    """
    for node in range(len(tokens) - 1, -1, -1):
        for order in range(keys_at_node(tokens, parents, node, tail, keys)):
            row = row_for(rows, keys[order, 0], keys[order, 1], now)
            count(rows, row, guesses[node], 1)


@kernel("int32[:,:]", "int64[:,:]", "int32[:]", "int64", "int16[:]", "int64", "int32[:]", "int64")
def learn_iterate(
    rows: NDArray[np.int32],
    keys: NDArray[np.int64],
    line: NDArray[np.int32],
    begin: int,
    parents: NDArray[np.int16],
    last: int,
    guesses: NDArray[np.int32],
    now: int,
) -> None:
    """Count the guesses along the best branch below node `last` as if they followed line[:begin].

    line int32 [at least begin + nodes]: scratch from `begin` on.
    """
    end = begin
    node = last + 1
    while node < len(parents):
        if parents[node] == last:
            for order in range(keys_in_text(line, end, keys)):
                row = row_for(rows, keys[order, 0], keys[order, 1], now)
                count(rows, row, guesses[node], 1)
            line[end] = guesses[node]
            end += 1
            last = node
        node += 1


class JacobiDrafter(TableDrafter):
    """Proposes what the target said it would say, where its own guesses led on."""

    name = "jacobi"
    wants_top = 1
    orders = _ORDERS
    ways = 4
    priors = priors_by_order(_ORDERS)
    kernels = Kernels(expand_counted, feed_nothing)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn how often proposals were right, and what the target says at each node."""
        super().observe(outcome)
        if outcome.top is None:
            return
        tree, guesses = outcome.tree, outcome.top.tokens[:, 0].copy()
        learn_guesses(
            self._rows, self._keys, self._tail, tree.tokens, tree.parents, guesses, self._now
        )
        if len(tree) > len(outcome.path):
            line = np.empty(len(self._tail) + len(outcome.path) + len(tree), np.int32)
            begin = len(self._tail) + len(outcome.path)
            line[: len(self._tail)] = self._tail
            line[len(self._tail) : begin] = outcome.new_tokens
            learn_iterate(
                self._rows, self._keys, line, begin, tree.parents, outcome.path[-1], guesses,
                self._now,
            )  # fmt: skip
        self._now += 1
