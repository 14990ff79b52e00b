"""Drafts from the target's own logits after the same n-gram, drawn with the target's own noise.

"Accelerated Test-Time Scaling with Model-Free Speculative Sampling" (STAND): n-gram tables keep the
target's likeliest tokens with their logits instead of counts, and drafts are sampled from them with
the Gumbel-top-k trick, so that acceptance does not fall with temperature. Here the target draws its
token as the argmax of logits / temperature + noise(seed, position, token), and the noise is known
before the logits are: the tables' logits get the very noise that the target's will get, so a draft
misses only where the remembered logits lead to another winner.

The logits describe the model, so a new text keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import (
    MATCH,
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
from edgespec.drafting.tables.followers import FIRST, NOBODY, find, keys_at_node, row_for
from edgespec.drafting.tables.table_drafter import TableDrafter
from edgespec.drafting.tree import StepOutcome
from edgespec.system.jit import inner_kernel, kernel
from edgespec.verification.noise import gumbel, position_key, wrapping
from edgespec.verification.sampling import SamplingParams

_ORDERS = 3
_WAYS = 8
_UNIT = 256.0
"""Logits are kept as whole numbers of 1 / 256, counted from the best one."""
_LOWEST = -64.0
_FIRST_PRIORS = (0.45, 0.65, 0.75)
"""How often what looks likeliest after 1, 2 and 3 tokens comes."""
_PRIORS = tuple(prior for first in _FIRST_PRIORS for prior in (first, 0.5 * first))


@inner_kernel
def remember(
    rows: NDArray[np.int32], row: int, tokens: NDArray[np.int32], logits: NDArray[np.float32]
) -> None:
    """Keep the target's likeliest tokens, best first, and how far their logits are below."""
    num_ways = (rows.shape[1] - FIRST) // 2
    for way in range(num_ways):
        rows[row, FIRST + way] = NOBODY
        if way < len(tokens):
            gap = float(logits[way]) - float(logits[0])
            known = _LOWEST <= gap <= 0.0  # what is not a number is not
            rows[row, FIRST + way] = tokens[way]
            rows[row, FIRST + num_ways + way] = int(_UNIT * (gap if known else _LOWEST))


@kernel
def learn_tree(
    rows: NDArray[np.int32],
    keys: NDArray[np.int64],
    tail: NDArray[np.int32],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    top_tokens: NDArray[np.int32],
    top_logits: NDArray[np.float32],
    now: int,
) -> None:
    """Remember what the target said at every node, for the contexts that end there; the likeliest
    nodes have the last word.
    """
    for node in range(len(tokens) - 1, -1, -1):
        for order in range(keys_at_node(tokens, parents, node, tail, keys)):
            row = row_for(rows, keys[order, 0], keys[order, 1], now)
            remember(rows, row, top_tokens[node], top_logits[node])


@inner_kernel
def num_allowed(rows: NDArray[np.int32], row: int, top_k: int, top_p: float, min_p: float) -> int:
    """How many of a row's tokens sampling would choose among, as far as the row can tell."""
    num_ways = (rows.shape[1] - FIRST) // 2
    total = 0.0
    for way in range(num_ways):
        if rows[row, FIRST + way] >= 0:
            total += math.exp(rows[row, FIRST + num_ways + way] / _UNIT)
    mass = 0.0
    allowed = 0
    for way in range(min(num_ways, top_k) if top_k > 0 else num_ways):
        share = math.exp(rows[row, FIRST + num_ways + way] / _UNIT)
        if rows[row, FIRST + way] < 0 or share < min_p or (way > 0 and mass >= top_p * total):
            break
        mass += share
        allowed += 1
    return allowed


@inner_kernel
def push_drawn(
    rows: NDArray[np.int32],
    row: int,
    order: int,
    rates: NDArray[np.float64],
    drawn: NDArray[np.float64],
    allowed: int,
    temperature: float,
    key: np.uint64,
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    first: int,
    node: int,
    left: float,
) -> float:
    """Let a row's tokens wait below `node` by their logits with the noise of their position added;
    return the probability that is left for others.
    """
    num_ways = (rows.shape[1] - FIRST) // 2
    best = 0
    for way in range(allowed):
        drawn[way] = rows[row, FIRST + num_ways + way] / _UNIT
        if temperature > 0.0:
            drawn[way] += temperature * gumbel(key, rows[row, FIRST + way])
        if drawn[way] > drawn[best]:
            best = way
    highest = drawn[best]
    total = 0.0
    for way in range(allowed):
        drawn[way] = math.exp(drawn[way] - highest)
        total += drawn[way]
    given = left
    siblings = num_waiting(places)
    for way in range(allowed):
        token = rows[row, FIRST + way]
        if is_waiting(places, first, siblings, token):
            continue
        kind = 2 * order + (0 if way == best else 1)
        share = left * drawn[way] / total
        p_accept = rates[kind, RATE] * share
        push(
            places, scores, token, node, kind, 0, places[node, MATCH] + 1, p_accept,
            share,
        )  # fmt: skip
        given -= p_accept
    return given


@kernel
def grow_by_drawing(
    rows: NDArray[np.int32],
    rates: NDArray[np.float64],
    keys: NDArray[np.int64],
    drawn: NDArray[np.float64],
    tail: NDArray[np.int32],
    max_nodes: int,
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    root_position: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: np.uint64,
) -> int:
    """Fill the tree, best path first; return its number of nodes with the root."""
    node = plant(places, scores, tail[-1], max_nodes)
    tokens, parents = places[:, TOKEN], places[:, PARENT]
    while node >= 0:
        left = 1.0
        first = num_waiting(places)
        key = position_key(seed, root_position + places[node, MATCH] + 1)
        for order in range(keys_at_node(tokens, parents, node, tail, keys) - 1, -1, -1):
            if left * scores[node, PATH] < PATH_FLOOR:
                break
            row = find(rows, keys[order, 0], keys[order, 1])
            if row >= 0:
                allowed = num_allowed(rows, row, top_k, top_p, min_p)
                left = push_drawn(
                    rows, row, order, rates, drawn, allowed, temperature, key, places, scores,
                    first, node, left,
                )  # fmt: skip
        node = take_best(places, scores)
    return num_nodes(places)


class StandDrafter(TableDrafter):
    """Proposes what the target would draw if its logits were those it had after the same tokens."""

    name = "stand"
    wants_top = _WAYS
    orders = _ORDERS
    ways = _WAYS
    priors = _PRIORS

    def __init__(self, max_bytes: int = TableDrafter.default_bytes, *, source: int = 1) -> None:
        self._drawn = np.zeros(_WAYS, np.float64)
        super().__init__(max_bytes, source=source)
        self._length = 0
        self.begin(SamplingParams(temperature=0.0, seed=0))

    @property
    def _fixed_bytes(self) -> int:
        return super()._fixed_bytes + self._drawn.nbytes

    def begin(self, sampling: SamplingParams) -> None:
        """Draw as the target will."""
        self._options = (
            float(sampling.temperature),
            sampling.top_k,
            float(sampling.top_p),
            float(sampling.min_p),
            np.uint64(sampling.seed),
        )

    def _forget(self) -> None:
        """What the target said after a few tokens is as true of the next text."""
        self._length = 0

    def _feed(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super()._feed(tokens)
        self._length += len(tokens)

    def _learn_outcome(self, outcome: StepOutcome) -> None:
        if outcome.top is not None:
            tree, top = outcome.tree, outcome.top
            learn_tree(
                self._rows, self._keys, self._tail, tree.tokens, tree.parents, top.tokens,
                top.logits, self._now,
            )  # fmt: skip
            self._now = (self._now + 1) % 2**30

    def _grow(self, max_nodes: int) -> int:
        with wrapping():
            return grow_by_drawing(
                self._rows,
                self._rates,
                self._keys,
                self._drawn,
                self._tail,
                max_nodes,
                self._proposal.places,
                self._proposal.scores,
                self._length - 1,
                *self._options,
            )
