"""The draft market: every drafter proposes, equal prefixes become one node, the surest come first.

Drafters do not compete for a step; nodes do. Every drafter's score is mapped to the acceptance that
was observed for such scores, so that nodes of all sources have prices in one currency, and the
controller verifies as many of the best as the measured cost curve says pay back.

A drafter that brings less than it costs is asked less and less often, and again at every step as
soon as it is right where nobody else was surer. Its store is fed when it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter, DraftTree, StepOutcome
from edgespec.drafting.calibration import AcceptanceStatistics, record_trees
from edgespec.drafting.merging import likeliest, merge, record_merged

if TYPE_CHECKING:
    from edgespec.verification.sampling import SamplingParams

MAX_SOURCES = 15
_RATE = 0.1
_LONGEST_WAIT = 16
_CHEAP = 0.0005
"""A call that costs this part of a token's worth is never skipped."""
_MOST_PENDING = 256
"""Tokens a store may lag behind: feeding more at once would be felt in one step."""
_LARGEST_BILL_S = 1e-3
"""What one call counts as at most: the first may compile a kernel."""


@dataclass(slots=True)
class Source:
    """One drafter in the market: what it costs, what it brings, and when it is asked next."""

    drafter: Drafter
    number: int
    """Its index in trees and statistics; 0 is the root, and agreement."""
    seconds: float = 0.0
    """A typical call's."""
    tokens: float = 1.0
    """Right tokens per call that nobody else was surer of; believed to be one at first."""
    wait: int = 0
    silence: int = 0
    asked: bool = False
    spent_s: float = 0.0
    """Since the step began: feeding, proposing and learning."""
    pending: list[int] = field(default_factory=list)


class Market(Drafter):
    """Merges the proposals of several drafters, which it owns, into one tree.

    `token_s` is what a right token is worth: the seconds of a plain pass.
    """

    name = "market"
    own_bytes = 128 * 1024
    """More than its own arrays hold, for trees of the usual sizes."""

    def __init__(
        self, drafters: Sequence[Drafter], statistics: AcceptanceStatistics | None = None
    ) -> None:
        self._sources = [Source(drafter, number) for number, drafter in enumerate(drafters, 1)]
        self.statistics = statistics or AcceptanceStatistics(MAX_SOURCES + 1)
        self.wants_top = max((drafter.wants_top for drafter in drafters), default=0)
        self.token_s = 1.0
        self._last = 0
        self._credit = np.zeros(MAX_SOURCES + 1, np.int64)
        self._count = 0
        self._resize(64)
        self._starts = np.zeros(1, np.int32)

    def _resize(self, num_nodes: int) -> None:
        self._tokens = np.zeros(num_nodes, np.int32)
        self._parents = np.zeros(num_nodes, np.int16)
        self._scores = np.zeros(num_nodes, np.float32)
        self._numbers = np.zeros(num_nodes, np.uint8)
        self._place = np.zeros(num_nodes, np.int32)
        self._nodes = np.zeros((5, num_nodes), np.int32)
        self._chances = np.zeros((4, num_nodes), np.float64)
        self._path_p = np.zeros(num_nodes, np.float64)
        self._rank = np.zeros(num_nodes, np.int32)

    @property
    def names(self) -> tuple[str, ...]:
        """Names by the index that trees carry; index 0 is the root."""
        return ("root", *(source.drafter.name for source in self._sources))

    def begin(self, sampling: SamplingParams) -> None:
        for source in self._sources:
            source.drafter.begin(sampling)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with this text; what was learnt about the sources stays."""
        for source in self._sources:
            source.pending.clear()
            source.drafter.reset(tokens)
            source.wait = source.silence = 0
        self._last = int(tokens[-1])
        self._count = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]
        for source in self._sources:
            source.pending.extend(tokens)
            if len(source.pending) >= _MOST_PENDING:
                start = time.perf_counter()
                _feed(source)
                source.spent_s += time.perf_counter() - start

    def propose(self, max_nodes: int) -> DraftTree:
        """The surest nodes of all proposals, at most `max_nodes` besides the root.

        `p_accept` is calibrated; every node comes after those that are likelier.
        """
        trees = [
            (source, tree) for source in self._sources if (tree := self._ask(source, max_nodes))
        ]
        self._count = 0
        if not trees:
            return DraftTree.root(self._last)
        self._gather(trees)
        self._count = merge(
            self.statistics.table,
            self._tokens,
            self._parents,
            self._scores,
            self._numbers,
            self._starts,
            self._nodes,
            self._place,
            self._chances,
        )
        chosen = np.empty(max_nodes + 1, np.int32)
        size = likeliest(self._nodes, self._chances, self._count, chosen, self._path_p, self._rank)
        chosen = chosen[:size]
        parents = self._rank[self._nodes[1, chosen]]
        parents[0] = -1
        return DraftTree(
            self._nodes[0, chosen],
            parents.astype(np.int16),
            self._chances[0, chosen].astype(np.float32),
            self._nodes[4, chosen].astype(np.uint8),
        )

    def _ask(self, source: Source, max_nodes: int) -> DraftTree | None:
        """A source's proposal, None when it has none or is not worth asking now."""
        source.asked = source.wait == 0
        if not source.asked:
            source.wait -= 1
            return None
        start = time.perf_counter()
        _feed(source)
        tree = source.drafter.propose(max_nodes)
        source.spent_s += time.perf_counter() - start
        return tree if len(tree) > 1 else None

    def _gather(self, trees: list[tuple[Source, DraftTree]]) -> None:
        """Lay the trees one after the other."""
        self._starts = np.zeros(len(trees) + 1, np.int32)
        np.cumsum([len(tree) for _, tree in trees], out=self._starts[1:])
        if self._starts[-1] > len(self._tokens):
            self._resize(2 * int(self._starts[-1]))
        for start, (source, tree) in zip(self._starts, trees, strict=False):
            place = slice(start, start + len(tree))
            self._tokens[place] = tree.tokens
            self._parents[place] = tree.parents
            self._scores[place] = tree.p_accept
            self._numbers[place] = source.number

    def observe(self, outcome: StepOutcome) -> None:
        """Compare all proposals with the tokens that came, verified or not."""
        self._credit[:] = 0
        if self._count:
            new_tokens = np.array(outcome.new_tokens, np.int32)
            record_trees(
                self.statistics.table,
                self._tokens,
                self._parents,
                self._scores,
                self._numbers,
                self._starts,
                new_tokens,
            )
            record_merged(
                self.statistics.table, self._nodes, self._chances, new_tokens, self._credit
            )
            self._count = 0
        for source in self._sources:
            start = time.perf_counter()
            if source.asked or source.drafter.wants_top:
                _feed(source)  # what it learns belongs behind the text before this step
                source.drafter.observe(outcome)
            source.spent_s += time.perf_counter() - start
            if source.asked:
                self._rate(source)

    def _rate(self, source: Source) -> None:
        """Book what a call cost and brought, and decide when to call again."""
        right = int(self._credit[source.number])
        bill = min(source.spent_s, _LARGEST_BILL_S)
        source.seconds += (_RATE if source.seconds else 1.0) * (bill - source.seconds)
        source.tokens += _RATE * (right - source.tokens)
        if right or (source.tokens + _CHEAP) * self.token_s >= source.seconds:
            source.silence = 0
        else:
            source.silence = min(max(2 * source.silence, 1), _LONGEST_WAIT)
        source.wait = source.silence
        source.asked = False

    def close(self) -> None:
        for source in self._sources:
            _feed(source)
            source.drafter.close()

    def take_seconds(self) -> dict[str, float]:
        """Seconds each drafter has spent since this was last asked, those at work only."""
        spent = {source.drafter.name: source.spent_s for source in self._sources if source.spent_s}
        for source in self._sources:
            source.spent_s = 0.0
        return spent

    @property
    def size_bytes(self) -> int:
        """Bytes of all stores and of the market's own arrays."""
        arrays = (self._tokens, self._parents, self._scores, self._numbers, self._place)
        more = (self._nodes, self._chances, self._path_p, self._rank)
        own = sum(array.nbytes for array in (*arrays, *more)) + self.statistics.size_bytes
        return own + sum(source.drafter.size_bytes for source in self._sources)


def _feed(source: Source) -> None:
    if source.pending:
        source.drafter.extend(source.pending)
        source.pending = []
