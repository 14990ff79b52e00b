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

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import Kernels
from edgespec.drafting.proposal import (
    MATCH,
    PARENT,
    PATH,
    PATH_FLOOR,
    PLACES,
    RATES,
    SCORES,
    TOKEN,
    is_waiting,
    num_waiting,
    push,
)
from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.followers import (
    FIRST,
    NOBODY,
    find,
    keys_at_node,
    row_for,
    says_nothing,
)
from edgespec.drafting.tables.table_drafter import TableDrafter, feed_nothing
from edgespec.drafting.text_drafter import KEYS, ROWS, STORE, WINDOW
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.system.addresses import (
    float64_line,
    float64_rows,
    int32_line,
    int32_rows,
    int64_rows,
    word,
)
from edgespec.system.jit import entry, inner_kernel, kernel
from edgespec.verification.noise import gumbel, position_key, wrapping
from edgespec.verification.sampling import SamplingParams

_ORDERS = 3
_WAYS = 8
_UNIT = 256.0
"""Logits are kept as whole numbers of 1 / 256, counted from the best one."""
_LOWEST = -64.0
_FIRST_PRIORS = (0.45, 0.65, 0.75)
"""How often what looks likeliest after 1, 2 and 3 tokens comes."""
DRAWN, OPTIONS, TOP_K, SEED, NUM_TOKENS = STORE, STORE + 3, STORE + 6, STORE + 7, STORE + 8
"""Words: scratch, how the target draws, and how many tokens the text has."""
TEMPERATURE, TOP_P, MIN_P = 0, 1, 2
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


@kernel(
    "int32[:,:]",
    "int64[:,:]",
    "int32[:]",
    "int32[:]",
    "int16[:]",
    "int32[:,:]",
    "float32[:,:]",
    "int64",
)
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
        if says_nothing(top_logits[node]):
            continue
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
def draw(table: int, row: int, allowed: int, position: int) -> int:
    """How likely each of a row's tokens is, by its logit with the noise of the position added, in
    the table's scratch; return the likeliest.
    """
    rows, drawn = int32_rows(table, ROWS), float64_line(table, DRAWN)
    num_ways = (rows.shape[1] - FIRST) // 2
    temperature = float64_line(table, OPTIONS)[TEMPERATURE]
    key = position_key(np.uint64(word(table, SEED)), position)
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
    for way in range(allowed):
        drawn[way] /= total
    return best


@inner_kernel
def push_drawn(
    table: int, row: int, order: int, allowed: int, best: int, first: int, node: int, left: float
) -> float:
    """Let a row's tokens wait below `node`; return the probability that is left for others."""
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    rows, rates = int32_rows(table, ROWS), float64_rows(table, RATES)
    drawn = float64_line(table, DRAWN)
    given = left
    siblings = num_waiting(places)
    for way in range(allowed):
        token = rows[row, FIRST + way]
        if is_waiting(places, first, siblings, token):
            continue
        kind = 2 * order + (0 if way == best else 1)
        share = left * drawn[way]
        p_accept = rates[kind, RATE] * share
        push(
            places, scores, token, node, kind, 0, places[node, MATCH] + 1, p_accept,
            share,
        )  # fmt: skip
        given -= p_accept
    return given


@entry
def expand_drawn(table: int, node: int, _: int) -> int:
    """Let what the target would draw after a node wait, the longest context's first."""
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    rows, keys = int32_rows(table, ROWS), int64_rows(table, KEYS)
    options = float64_line(table, OPTIONS)
    tail = int32_line(table, WINDOW)[: len(keys)]
    tokens, parents = places[:, TOKEN], places[:, PARENT]
    left = 1.0
    first = num_waiting(places)
    position = word(table, NUM_TOKENS) + places[node, MATCH]
    for order in range(keys_at_node(tokens, parents, node, tail, keys) - 1, -1, -1):
        if left * scores[node, PATH] < PATH_FLOOR:
            break
        row = find(rows, keys[order, 0], keys[order, 1])
        if row >= 0:
            top_k, top_p, min_p = word(table, TOP_K), options[TOP_P], options[MIN_P]
            allowed = num_allowed(rows, row, top_k, top_p, min_p)
            best = draw(table, row, allowed, position)
            left = push_drawn(table, row, order, allowed, best, first, node, left)
    return 0


class StandDrafter(TableDrafter):
    """Proposes what the target would draw if its logits were those it had after the same tokens."""

    name = "stand"
    wants_top = _WAYS
    orders = _ORDERS
    ways = _WAYS
    priors = _PRIORS
    kernels = Kernels(expand_drawn, feed_nothing)
    is_shared = True

    def __init__(self, max_bytes: int = TableDrafter.default_bytes, *, source: int = 1) -> None:
        self._drawn, self._options = np.zeros(_WAYS, np.float64), np.zeros(3, np.float64)
        super().__init__(max_bytes, source=source)
        self.table.bind(DRAWN, self._drawn)
        self.table.bind(OPTIONS, self._options)
        self.begin(SamplingParams(temperature=0.0, seed=0))

    @property
    def _fixed_bytes(self) -> int:
        return super()._fixed_bytes + self._drawn.nbytes + self._options.nbytes

    def begin(self, sampling: SamplingParams) -> None:
        """Draw as the target will."""
        self._options[:] = sampling.temperature, sampling.top_p, sampling.min_p
        self._words[TOP_K] = sampling.top_k
        self._words[SEED] = int(np.uint64(sampling.seed).view(np.int64))

    def _forget(self) -> None:
        """What the target said after a few tokens is as true of the next text."""
        self._words[NUM_TOKENS] = 0

    def _feed(self, tokens: NDArray[np.int32]) -> None:
        super()._feed(tokens)
        self._words[NUM_TOKENS] += len(tokens)

    def propose(self, max_nodes: int) -> DraftTree:
        """The likeliest continuations, at most `max_nodes` besides the root, best path first."""
        with wrapping():
            return super().propose(max_nodes)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn how often proposals were right, and the target's logits at each node."""
        super().observe(outcome)
        if outcome.top is not None:
            tree, top = outcome.tree, outcome.top
            learn_tree(
                self._rows, self._keys, self._tail, tree.tokens, tree.parents, top.tokens,
                top.logits, self._now,
            )  # fmt: skip
            self._now += 1
