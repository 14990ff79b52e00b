"""Drafts by a model: the target's own first layers, or a smaller one.

A draft is drawn with the target's own noise, so the two agree wherever they think alike. How
clearly a draft won over the runner-up tells how likely it is right, and how likely the runner-up
is; both are learnt from what came, as FREE's thresholds are ("Fast and Robust Early-Exiting
Framework for Autoregressive Language Models with Synchronized Parallel Decoding", section 3.3). A
chain goes on while its next token is worth more than it takes: Kangaroo's stop, with a price.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import TILE, Logits
from edgespec.backends.sequence import KvSequence
from edgespec.drafting.base import Drafter
from edgespec.drafting.model.chains import (
    MEAN,
    NOBODY,
    NUM_MARGINS,
    SECOND,
    best_length,
    draw_two,
    first_rates,
    lay_out,
    learn_chain,
)
from edgespec.drafting.rates import RATE, new_rates
from edgespec.drafting.tree import NO_PATH, DraftTree, Path, StepOutcome
from edgespec.errors import OptionError
from edgespec.verification.best_tokens import BLOCK
from edgespec.verification.match import find_maxima
from edgespec.verification.noise import wrapping
from edgespec.verification.sampling import SamplingParams

LONGEST = 8
"""Most tokens of a chain."""
MOST_CANDIDATES = 64
_RATE, _RATE_DOWN = 0.05, 0.5
"""Prices follow slowly up, and quickly down: what makes a draft slow is mostly not its own.
"""
_LARGEST_SURPRISE = 2.0
"""A draft counts as at most this many times the usual: one page fault decides nothing."""


class Draw(NamedTuple):
    """What a model says comes next."""

    first: int
    second: int
    """The runner-up, NOBODY where there is none."""
    kind: int
    """How clearly the first won."""


class ModelDrafter(Drafter):
    """Draws a chain of drafts from rows of logits that a subclass computes."""

    costly = True

    def __init__(
        self, vocab_size: int, *, source: int = 1, ids: NDArray[np.int32] | None = None
    ) -> None:
        """`ids` are the target's of the tokens that rows of logits are about; None: the same."""
        self.source = source
        self._row_ids = np.zeros(0, np.int32) if ids is None else ids
        self._sampling = SamplingParams(temperature=0.0, seed=0)
        self._options = _options(self._sampling)
        self._rates = new_rates(first_rates())
        self._kinds = np.zeros(LONGEST, np.int64)
        self._drafts = np.zeros((LONGEST, 2), np.int64)
        self._num_drafts = 0
        self._path = NO_PATH
        """What the drafts come after."""
        self._drawn = np.zeros(2, np.int64)
        self._block_max = np.zeros(-(-vocab_size // (TILE * BLOCK)), np.int32)
        self._heap = np.zeros(MOST_CANDIDATES, np.int64)
        self._tokens = np.zeros(2 * LONGEST + 1, np.int32)
        self._parents = np.zeros(2 * LONGEST + 1, np.int16)
        self._given = np.ones(2 * LONGEST + 1, np.float32)
        self._nodes = np.full(2 * LONGEST + 1, source, np.uint8)
        self._nodes[0], self._parents[0] = 0, -1
        self._position, self._last = -1, -1
        self._step_s = 0.0
        """What a draft takes."""
        self._prices: NDArray[np.float64] | None = None

    def attach(self, sequence: KvSequence, prices: NDArray[np.float64]) -> None:
        self._prices = prices

    def begin(self, sampling: SamplingParams) -> None:
        self._sampling, self._options = sampling, _options(sampling)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with these tokens as the text so far; what was learnt stays."""
        self._position, self._num_drafts = -1, 0
        self.extend(tokens)

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """The text grew by these tokens."""
        if len(tokens):
            self._position += len(tokens)
            self._last = int(tokens[-1])

    def propose(self, max_nodes: int) -> DraftTree:
        """A chain with runners-up beside it, at most `max_nodes` besides the root."""
        if self._last < 0:
            raise OptionError(
                "a drafter has no text to continue; call reset() with the prompt first"
            )
        return self._propose(NO_PATH, max_nodes)

    def _propose(self, path: Path, max_nodes: int) -> DraftTree:
        self._num_drafts, self._path = 0, path
        self._draw_chain(max(min(max_nodes, LONGEST, self._room() - len(path.tokens)), 0))
        self._tokens[0] = path.tokens[-1] if path.tokens else self._last
        size = lay_out(
            self._rates,
            self._kinds,
            self._drafts,
            self._num_drafts,
            max_nodes + 1,
            self._tokens,
            self._parents,
            self._given,
        )
        return DraftTree(
            self._tokens[:size], self._parents[:size], self._given[:size], self._nodes[:size]
        )

    def _draw_chain(self, longest: int) -> None:
        """Draw up to so many tokens, each while it pays; the text's next always, to learn from."""
        token, chance, value_s = self._last, self._path.chance, self.value_s(longest)
        for depth in range(longest):
            place = len(self._path.tokens) + depth
            if place and chance * self._rates[MEAN, RATE] * value_s < self._price(place):
                return
            start = time.perf_counter()
            if not self._draw(depth, *self._row(token, depth)):
                return
            chance *= float(self._rates[self._kinds[depth], RATE])
            token = int(self._drafts[depth, 0])
            if depth:  # the first may have to catch up with the text
                self._observe_price(time.perf_counter() - start)

    def _draw(self, depth: int, logits: Logits, maxima: Logits) -> bool:
        """Draw the draft number `depth` of the chain; False where nothing can be drawn."""
        draw = self._draw_at(self._position + len(self._path.tokens) + depth + 1, logits, maxima)
        if draw is None:
            return False
        self._drafts[depth] = draw.first, draw.second
        self._kinds[depth], self._num_drafts = draw.kind, depth + 1
        return True

    def _draw_at(self, position: int, logits: Logits, maxima: Logits) -> Draw | None:
        """Draw the token for a position; None where nothing can be drawn."""
        with wrapping():
            margin = draw_two(
                logits[0],
                logits[0].view(np.int32),
                maxima[0].view(np.int32),
                self._options,
                position,
                self._block_max[: -(-maxima.shape[1] // BLOCK)],
                self._heap,
                self._row_ids,
                self._drawn,
            )
        if margin < 0.0:
            return None
        return Draw(int(self._drawn[0]), int(self._drawn[1]), self._kind(margin))

    def chances(self, draw: Draw) -> tuple[float, float]:
        """How likely its first and its second are right."""
        second = 0.0 if draw.second == NOBODY else self._rates[draw.kind + SECOND, RATE]
        return float(self._rates[draw.kind, RATE]), float(second)

    def learn(self, draw: Draw, token: int) -> None:
        """This came where that was drawn."""
        kinds, drafts = np.array([draw.kind]), np.array([[draw.first, draw.second]])
        learn_chain(self._rates, kinds, drafts, 1, np.array([token], np.int32))

    @property
    def mean_rate(self) -> float:
        """How often a draft is right."""
        return float(self._rates[MEAN, RATE])

    def _kind(self, margin: float) -> int:
        steps = int(min(margin, 100.0) * 2.0)
        kind = min(steps, 2) if steps < 3 else 3 + int(math.log2(steps / 3.0) * 2.0)
        return min(kind, NUM_MARGINS - 1) + (0 if self._sampling.greedy else NUM_MARGINS)

    def value_s(self, longest: int = LONGEST, step_s: float | None = None) -> float:
        """Seconds that a right token saves: what one takes at the best length, if a draft takes
        `step_s` (None: what it was measured to).
        """
        if self._prices is None:
            return math.inf
        step_s = self._step_s if step_s is None else step_s
        return float(best_length(self._prices, self.mean_rate, step_s, longest))

    def _price(self, depth: int) -> float:
        """Seconds that a draft more takes: to draw it, and to verify it."""
        prices = self._prices
        if prices is None or depth + 1 >= len(prices):
            return self._step_s
        return self._step_s + float(prices[depth + 1] - prices[depth])

    def _observe_price(self, seconds: float) -> None:
        known = self._step_s or seconds
        rate = _RATE_DOWN if seconds < known else _RATE
        self._step_s = known + rate * (min(seconds, _LARGEST_SURPRISE * known) - known)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn how often drafts of each kind are right."""
        came = self._after_path(outcome)
        learn_chain(self._rates, self._kinds, self._drafts, self._num_drafts, came)
        self._num_drafts = 0

    def _after_path(self, outcome: StepOutcome) -> NDArray[np.int32]:
        """The tokens that came where the chain begins; none if it was another path."""
        came, length = np.asarray(outcome.new_tokens, np.int32), len(self._path.tokens)
        return came[length if came[:length].tolist() == self._path.tokens else len(came) :]

    @abstractmethod
    def _room(self) -> int:
        """Most tokens that can be drafted now."""

    @abstractmethod
    def _row(self, token: int, depth: int) -> tuple[Logits, Logits]:
        """Logits [1, n] of what follows `token`, the draft before number `depth` of the chain, and
        their maxima [1, tiles]. At `depth` 0 it is the text's last, and the path comes after it.
        """

    @property
    def size_bytes(self) -> int:
        """Bytes of its arrays; the models' own are the plan's."""
        own = (self._rates, self._kinds, self._drafts, self._drawn, self._block_max, self._heap)
        tree = (self._tokens, self._parents, self._given, self._nodes)
        return sum(array.nbytes for array in (*own, *tree))


def with_maxima(logits: Logits, maxima: Logits | None) -> tuple[Logits, Logits]:
    """Logits, and their tiles' maxima where the backend has none."""
    return logits, find_maxima(logits) if maxima is None else maxima


def _options(sampling: SamplingParams) -> tuple[float, int, float, float, np.uint64]:
    """What drawing takes of them."""
    return (
        float(sampling.temperature),
        sampling.top_k,
        float(sampling.top_p),
        float(sampling.min_p),
        np.uint64(sampling.seed),
    )
