"""The draft market: every drafter proposes, equal prefixes become one node, the surest come first.

Drafters do not compete for a step; nodes do. Every drafter's score is mapped to the acceptance that
was observed for such scores, so that nodes of all sources have prices in one currency, and the
controller verifies as many of the best as the measured cost curve says pay back.

Free drafters that are tables of addresses (`grown.py`) are fed, asked, merged and told by two
compiled calls a step (`step.py`); others by Python, call by call. One that brings nothing falls
silent for a while; its store is fed when it is asked. One whose every proposal costs something is
asked after the others, by what its own account holds (`account.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter
from edgespec.drafting.market.acceptance import AcceptanceStatistics, record_tree
from edgespec.drafting.market.account import NOTHING_COSTLY
from edgespec.drafting.market.books import Books
from edgespec.drafting.market.costly import CostlyDrafts
from edgespec.drafting.market.source import Source
from edgespec.drafting.market.step import ASKED, RIGHT, SIZE, draft, learn, learn_ratings
from edgespec.drafting.tree import NO_PATH, DraftTree, StepOutcome

if TYPE_CHECKING:
    from edgespec.backends.sequence import KvSequence
    from edgespec.verification.sampling import SamplingParams

MAX_SOURCES = 15


class Market(Drafter):
    """Merges the proposals of several drafters, which it owns, into one tree.

    `token_s` is what a right token is worth: the seconds of a plain pass.
    """

    name = "market"

    def __init__(
        self,
        drafters: Sequence[Drafter],
        statistics: AcceptanceStatistics | None = None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        compiled: bool = True,
        on_trial: Sequence[str] = (),
    ) -> None:
        """Without `compiled` every drafter is asked by Python, which proposes the same. Costly ones
        `on_trial` may lose less, as nobody asked for them.
        """
        self.statistics = statistics or AcceptanceStatistics(MAX_SOURCES + 1)
        self._books = books = Books(drafters, self.statistics.table, clock, compiled, on_trial)
        self._sources, self._costly, self._merged = books.sources, books.costly, books.merged
        self._is_whole = len(books.called) == len(self._sources)
        """Whether nobody is left to be asked by Python."""
        self.has_free = len(self._costly) < len(self._sources)
        """Whether somebody can be asked at next to no cost."""
        self._costly_drafts = CostlyDrafts(books)
        self.step, self.costly_at = 0, self._costly_drafts.at
        """Steps of all texts, and the one from which a costly drafter is to be asked."""
        self.costly_asked = False
        """Whether one was asked in this step."""
        self.costly_step = NOTHING_COSTLY
        """What costly drafters had to do with the step that was observed last."""
        self.wants_top = max((drafter.wants_top for drafter in drafters), default=0)
        self.token_s = 1.0
        self._clock = clock
        self._prices: NDArray[np.float64] = np.zeros(0, np.float64)
        """Seconds of a pass by its nodes; none while nothing is known."""
        self._proposed = False
        self._called_s = 0.0
        """Seconds of the compiled calls."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names by the index that trees carry; index 0 is the root."""
        return ("root", *(source.drafter.name for source in self._sources))

    @property
    def saved_s(self) -> float:
        return sum(source.drafter.saved_s for source in self._costly if source.asked)

    def attach(self, sequence: KvSequence, prices: NDArray[np.float64]) -> None:
        self.token_s, self._prices = float(prices[0]), prices
        for source in self._sources:
            source.drafter.attach(sequence, prices)

    def begin(self, sampling: SamplingParams) -> None:
        for source in self._sources:
            source.drafter.begin(sampling)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with this text; what was learnt about the sources stays."""
        self._books.feed_all()  # the last words of the reply before: some keep them
        for source in self._sources:
            source.drafter.reset(tokens)
            source.tree, source.path, source.asked = None, NO_PATH, False
            if source.account is not None:
                source.account.begin()
        self._books.begin(tokens)
        self.costly_asked = False

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.step += 1
        self._books.append(tokens)

    def feed_all(self) -> None:
        """Let all stores read what they have not read."""
        self._books.feed_all()

    @property
    def costly_risk_s(self) -> float:
        """Seconds that the pass over a tree may take longer for the costly drafters in it."""
        return self.token_s * self._costly_drafts.risk

    @property
    def costly_s(self) -> float:
        """Seconds that costly drafters took in this step so far."""
        return self._costly_drafts.seconds

    def credit(self, seconds: float) -> None:
        """The pass was spared these seconds by the costly drafter that was asked."""
        for source in self._costly:
            if source.asked:
                source.spent_s -= seconds
                return

    def propose(self, max_nodes: int, *, free: bool = True) -> DraftTree:
        """The surest nodes of all proposals, at most `max_nodes` besides the root; without `free`
        of the costly drafters' alone.

        `p_accept` is calibrated; every node comes after those that are likelier.
        """
        start, self._proposed = self._clock(), True
        books = self._books
        if max_nodes > books.most_nodes:
            books.reserve(max_nodes)
        size = draft(books.core.address, max_nodes, free, self._is_whole)
        called_s = self._clock() - start
        self._called_s += called_s
        if self._is_whole:
            return self._merged.trees[size]
        if free:
            for source in books.free:
                self._ask(source, max_nodes)
        found = self._merged.likeliest(max_nodes + 1)
        if self._costly:
            costly = self._costly_drafts
            found = costly.ask(found, max_nodes, free, self.step)
            self.costly_asked, self.costly_at = costly.asked, costly.at
            if not free:  # all of this was for them
                self._called_s -= called_s
                self._costly[0].spent_s += self._clock() - start - costly.seconds
        return found

    @property
    def is_compiled(self) -> bool:
        """Whether a kernel may ask, tell and feed all sources by `compiled`."""
        return self._is_whole and not self.wants_top

    @property
    def room(self) -> int:
        """Tokens that a kernel may append before Python has to look after the stores."""
        return self._books.kernel_room

    def compiled(self, max_nodes: int) -> int:
        """The address of the table that `step.draft` and `step.learn` take, with room for proposals
        of so many nodes, root included.
        """
        if max_nodes > self._books.most_nodes:
            self._books.reserve(max_nodes)
        self._books.reserve_new(max_nodes)
        return self._books.core.address

    def wrote(self, num_tokens: int, num_steps: int, seconds: float) -> None:
        """A kernel has appended so many tokens in so many steps; drafting took so long in all."""
        self.step += num_steps
        self._called_s += seconds
        self._books.appended(num_tokens)

    def _ask(self, source: Source, max_nodes: int) -> None:
        """Merge a free source's proposal, if it is its turn."""
        row = self._books.ledger[source.number - 1]
        source.asked = bool(row[ASKED])
        if source.asked:
            start = self._clock()
            self._books.feed(source)
            tree = source.drafter.propose(max_nodes)
            if len(tree) > 1:
                source.tree, row[SIZE] = tree, len(tree)
                self._merged.add(tree, source.number)
            source.spent_s += self._clock() - start

    def observe(self, outcome: StepOutcome) -> None:
        """Compare all proposals with the tokens that came, verified or not."""
        self.costly_step = NOTHING_COSTLY
        if self._proposed:
            self._learn(outcome)
        if self._is_whole:
            return
        for source in self._sources:
            if source.asked or source.drafter.wants_top:
                start = self._clock()
                self._books.feed(source)  # what it learns belongs behind the text before this step
                source.drafter.observe(outcome)
                source.spent_s += self._clock() - start
            if source.account is None:
                source.asked = False
        if self.costly_asked:
            self.costly_asked = False
            self.costly_step = self._costly_drafts.settle(outcome, self._prices, self.token_s)
            self.costly_at = self._costly_drafts.at

    def _learn(self, outcome: StepOutcome) -> None:
        """Find out whose nodes were right, and let the called drafters learn."""
        start, self._proposed = self._clock(), False
        came = self._books.write_new(outcome.new_tokens)
        tree, core = outcome.tree, self._books.core.address
        learn(core, tree.tokens, tree.parents, len(came), self._is_whole)
        self._called_s += self._clock() - start
        if not self._is_whole:
            self._record(came)
            learn_ratings(core)

    def _record(self, new_tokens: NDArray[np.int32]) -> None:
        """Count what the sources that Python asked had right."""
        is_alone = int((self._books.ledger[:, SIZE] > 0).sum()) == 1
        for source in self._sources:
            if source.tree:
                tree, path = source.tree, source.path.tokens
                source.tree = None
                if path and new_tokens[: len(path)].tolist() != path:
                    continue
                self._books.ledger[source.number - 1, RIGHT] = record_tree(
                    self.statistics.table,
                    source.number,
                    tree.tokens,
                    tree.parents,
                    tree.p_accept,
                    new_tokens,
                    len(path),
                    is_alone,
                )

    def remember(self, tokens: NDArray[np.int32]) -> None:
        for source in self._sources:
            source.drafter.remember(tokens)

    def pause(self) -> None:
        self._books.feed_all()  # some remember replies when they end
        for source in self._sources:
            source.drafter.pause()

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]  # others set theirs
        """What went wrong in this reply, of all drafters."""
        return tuple(note for source in self._sources for note in source.drafter.notes)

    @property
    def overlap(self) -> str:
        """Whether drafting overlapped with verifying, of the first drafter that can tell."""
        said = (source.drafter.overlap for source in self._sources)
        return next((clause for clause in said if clause), "")

    def shrink(self) -> int:
        self._books.feed_all()
        given = sum(source.drafter.shrink() for source in self._sources)
        self._books.look_at_room()
        return given

    def close(self) -> None:
        self.feed_all()
        for source in self._sources:
            source.drafter.close()
        self.statistics.save()

    def take_seconds(self) -> dict[str, float]:
        """Seconds each drafter has spent since this was last asked, those at work only; drafters
        that one call asks share its time evenly.
        """
        spent = {}
        called = self._books.called
        if self._called_s and called:
            share, self._called_s = self._called_s / len(called), 0.0
            spent = {drafter.name: share for drafter in called}
        for source in self._sources:
            if source.spent_s:
                name = source.drafter.name
                spent[name] = spent.get(name, 0.0) + source.spent_s
                source.spent_s = 0.0
        return spent

    @property
    def size_bytes(self) -> int:
        """Bytes of all stores and of the market's own arrays."""
        own = self._books.size_bytes + self._costly_drafts.size_bytes + self.statistics.size_bytes
        return own + sum(source.drafter.size_bytes for source in self._sources)
