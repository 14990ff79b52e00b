"""The draft market: every drafter proposes, equal prefixes become one node, the surest come first.

Drafters do not compete for a step; nodes do. Every drafter's score is mapped to the acceptance that
was observed for such scores, so that nodes of all sources have prices in one currency, and the
controller verifies as many of the best as the measured cost curve says pay back.

A drafter that brings less than it costs is asked less and less often, and again at every step as
soon as it is right where nobody else was surer. Its store is fed when it is asked. One whose every
proposal costs something is asked after the others, by what its own account holds (`account.py`).

A model's chain begins where it is most needed: at the end of that part of the others' surest path
which is likeliest to come and not to be followed by what they say, often its last node. Where the
chain ends they are asked for what follows it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter
from edgespec.drafting.market.acceptance import AcceptanceStatistics, record_tree
from edgespec.drafting.market.account import NOTHING_COSTLY, CostlyAccount, CostlyStep
from edgespec.drafting.market.merging import MergedTree
from edgespec.drafting.market.source import Source, brought
from edgespec.drafting.proposal import Proposal
from edgespec.drafting.tree import NO_PATH, DraftTree, StepOutcome

if TYPE_CHECKING:
    from edgespec.backends.sequence import KvSequence
    from edgespec.verification.sampling import SamplingParams

MAX_SOURCES = 15
_RATE = 0.1
_LONGEST_WAIT = 16
_CHEAP = 0.0005
"""A call that costs this part of a token's worth is never skipped."""
_SECOND_CHOICE = 16
"""One in so many costly proposals is of whoever was not asked for longest."""
_MOST_PENDING = 256
"""Tokens a store may lag behind: feeding more at once would be felt in one step."""
_LARGEST_BILL_S, _LARGEST_BILL = 1e-3, 2.5
"""What one call counts as at most, in seconds and in tokens' worth, whichever is more: the first
may compile a kernel.
"""


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
    ) -> None:
        self._sources = [Source(drafter, number) for number, drafter in enumerate(drafters, 1)]
        self._costly = [source for source in self._sources if source.drafter.costly]
        for source in self._costly:
            source.account = CostlyAccount()
        self.has_free = len(self._costly) < len(self._sources)
        """Whether somebody can be asked at next to no cost."""
        self.step, self.costly_at = 0, 0 if self._costly else sys.maxsize
        """Steps of all texts, and the one from which a costly drafter is to be asked."""
        self._turns = 0
        """Proposals of costly drafters."""
        self.costly_asked = False
        """Whether one was asked in this step."""
        self.costly_step = NOTHING_COSTLY
        """What costly drafters had to do with the step that was observed last."""
        self.statistics = statistics or AcceptanceStatistics(MAX_SOURCES + 1)
        self.wants_top = max((drafter.wants_top for drafter in drafters), default=0)
        self.token_s = 1.0
        self._clock = clock
        self._prices: NDArray[np.float64] = np.zeros(0, np.float64)
        """Seconds of a pass by its nodes; none while nothing is known."""
        self._sequence: KvSequence | None = None
        self._last = 0
        self._latest: list[int] = []
        """Tokens that some store may not have been fed."""
        self._proposed = False
        self._credit = np.zeros(MAX_SOURCES + 1, np.int64)
        self._merged = MergedTree(self.statistics.table)
        self._scratch = Proposal(0) if self._costly else None
        """Where what follows others' drafts grows."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names by the index that trees carry; index 0 is the root."""
        return ("root", *(source.drafter.name for source in self._sources))

    @property
    def saved_s(self) -> float:
        return sum(source.drafter.saved_s for source in self._sources if source.asked)

    def attach(self, sequence: KvSequence, prices: NDArray[np.float64]) -> None:
        self.token_s, self._prices, self._sequence = float(prices[0]), prices, sequence
        for source in self._sources:
            source.drafter.attach(sequence, prices)

    def begin(self, sampling: SamplingParams) -> None:
        for source in self._sources:
            source.drafter.begin(sampling)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with this text; what was learnt about the sources stays."""
        self.feed_all()  # the last words of the reply before: some keep them
        for source in self._sources:
            source.drafter.reset(tokens)
            source.wait = source.silence = 0
            source.tree, source.path, source.asked = None, NO_PATH, False
            if source.account is not None:
                source.account.begin()
        self._last, self.costly_asked = int(tokens[-1]), False

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self._last = tokens[-1]
        self.step += 1
        self._latest.extend(tokens)
        if len(self._latest) >= _MOST_PENDING:
            self.feed_all()

    def feed_all(self) -> None:
        """Let all stores read what they have not read."""
        if not self._latest:
            return
        for source in self._sources:
            start = self._clock()
            self._feed(source)
            source.spent_s += self._clock() - start
            source.num_read = 0
        self._latest.clear()

    def _feed(self, source: Source) -> None:
        if source.num_read < len(self._latest):
            source.drafter.extend(self._latest[source.num_read :])
            source.num_read = len(self._latest)

    @property
    def costly_risk_s(self) -> float:
        """Seconds that the pass over a tree may take longer for the costly drafters in it."""
        asked = (
            source.account.balance for source in self._costly if source.tree and source.account
        )
        return self.token_s * max(asked, default=0.0)

    @property
    def costly_s(self) -> float:
        """Seconds that costly drafters took in this step so far."""
        return sum(source.spent_s for source in self._costly)

    def after_pass(self, share: float = 1.0) -> float:
        """Seconds that the pass over the proposal did not spend, because drafting did its work; of
        what the pass itself was spared, a market has its `share`.
        """
        seconds_saved = share * self._sequence.target.seconds_saved if self._sequence else 0.0
        if seconds_saved and self._costly:
            self._costly[0].spent_s -= seconds_saved
        return self.saved_s + seconds_saved

    def propose(self, max_nodes: int, *, free: bool = True) -> DraftTree:
        """The surest nodes of all proposals, at most `max_nodes` besides the root; without `free`
        of the costly drafters' alone.

        `p_accept` is calibrated; every node comes after those that are likelier.
        """
        start, self._proposed = self._clock(), True
        room = 1 + len(self._costly) * len(self._sources) * (max_nodes + 1)
        for source in self._sources:
            if source.account is None:
                source.tree = tree = self._ask(source, max_nodes) if free else None
                room += len(tree) if tree else 0
        self._merged.clear(room, max_nodes + 1)
        for source in self._sources:
            if source.account is None and source.tree:
                self._merged.add(source.tree, source.number)
        found = self._likeliest(max_nodes)
        if self._costly:
            found = self._ask_costly(found, max_nodes, free)
            self.costly_asked = any(source.asked for source in self._costly)
            self._plan_costly()
            if not free:  # all of this was for them
                self._costly[0].spent_s += self._clock() - start - self.costly_s
        return found

    def _likeliest(self, max_nodes: int) -> DraftTree:
        """The surest nodes of what was merged."""
        if len(self._merged) == 0:
            return DraftTree.root(self._last)
        return self._merged.likeliest(max_nodes + 1)

    def _ask(self, source: Source, max_nodes: int) -> DraftTree | None:
        """A source's proposal, None when it has none or is not worth asking now."""
        source.asked = source.wait == 0
        if not source.asked:
            source.wait -= 1
            return None
        return self._draft(source, max_nodes)

    def _draft(self, source: Source, max_nodes: int) -> DraftTree | None:
        start = self._clock()
        self._feed(source)
        tree = source.drafter.propose(max_nodes)
        source.spent_s += self._clock() - start - source.drafter.saved_s
        return tree if len(tree) > 1 else None

    def _ask_costly(self, tree: DraftTree, max_nodes: int, free: bool) -> DraftTree:
        """The others' tree with what one costly source adds, if an account bears asking: two would
        draft the same tokens twice.
        """
        wanting = [source for source in self._costly if self._wants(source, tree)]
        if not wanting:
            return tree
        best = max(wanting, key=lambda source: source.account.worth if source.account else 0.0)
        self._turns += 1
        if self._turns % _SECOND_CHOICE == 0:
            best = min(wanting, key=lambda source: source.turn)
        best.turn = self._turns
        return self._draft_after(best, tree, max_nodes, free)

    def _wants(self, source: Source, tree: DraftTree) -> bool:
        """Whether a costly source's account bears asking it beside the others' tree."""
        account, drafter = source.account, source.drafter
        source.tree, source.asked, source.path = None, False, NO_PATH
        if account is None or not account.may_want(self.step):
            return False
        if drafter.follows:
            source.path = tree.end_of_knowledge()
        sure = float(tree.p_accept[1]) if len(tree) > 1 else 0.0
        return account.wants(self.step, sure, follows=bool(source.path.tokens))

    def _draft_after(
        self, source: Source, tree: DraftTree, max_nodes: int, free: bool
    ) -> DraftTree:
        """The others' tree with a costly source's proposal, where its path ends."""
        start, drafter, path = self._clock(), source.drafter, source.path
        self._feed(source)
        if path.tokens and self._scratch:
            found = drafter.propose_after(path, max_nodes - len(path.tokens), self._scratch)
        else:
            found = drafter.propose(max_nodes)
        # One that says nothing after a path found it too unsure: it was not asked.
        source.asked = len(found) > 1 or not path.tokens
        if len(found) > 1:
            source.tree = found
            self._merged.add(found, source.number, path.node)
            tree = self._likeliest(max_nodes)
            if free:
                tree = self._go_on(source, tree, max_nodes)
        source.spent_s += self._clock() - start - drafter.saved_s
        return tree

    def _go_on(self, costly: Source, tree: DraftTree, max_nodes: int) -> DraftTree:
        """The tree with what free sources say to follow a costly one's chain, if that is surest."""
        path, room = tree.surest(), max_nodes + 1 - len(tree)
        if room < 1 or self._scratch is None or tree.sources[path.node] != costly.number:
            return tree
        for source in self._sources:
            if source.account is None and source.drafter.follows:
                self._feed(source)
                found = source.drafter.propose_after(path, room, self._scratch)
                if len(found) > 1:
                    self._merged.add(found, source.number, path.node)
        return self._likeliest(max_nodes)

    def observe(self, outcome: StepOutcome) -> None:
        """Compare all proposals with the tokens that came, verified or not."""
        self.costly_step = NOTHING_COSTLY
        if not self._proposed and not self.wants_top:
            return
        right = [0] * (len(self._sources) + 1)
        if self._proposed:
            self._proposed = False
            right = self._record(np.asarray(outcome.new_tokens, np.int32))
        for source in self._sources:
            if source.asked or source.drafter.wants_top:
                start = self._clock()
                self._feed(source)  # what it learns belongs behind the text before this step
                source.drafter.observe(outcome)
                source.spent_s += self._clock() - start
            if source.asked and source.account is None:
                self._rate(source)
        if self.costly_asked:
            self.costly_asked = False
            self._settle(outcome, right)

    def _settle(self, outcome: StepOutcome, right: list[int]) -> None:
        """Book what costly sources took and brought; `right` are the right tokens of each source."""
        accepted = len(outcome.path) - 1
        others = max(
            (right[source.number] for source in self._sources if source.account is None), default=0
        )
        seconds, nodes = 0.0, 0
        for source in self._costly:
            if source.asked and source.account is not None:
                source.asked = False
                own = brought(outcome.tree, source.number)
                seconds, nodes = seconds + source.spent_s, nodes + own
                tokens = (
                    accepted if right[source.number] > others else min(accepted, others)
                ) - others
                gain = tokens - self._pass_s(len(outcome.tree), own) / self.token_s
                source.account.settle(source.spent_s / self.token_s, gain)
        self._plan_costly()
        self.costly_step = CostlyStep(seconds, accepted - others, nodes, True, others > 0)

    def _plan_costly(self) -> None:
        """Work out when a costly source is to be asked next."""
        steps = (source.account.next_step for source in self._costly if source.account)
        self.costly_at = min(steps, default=sys.maxsize)

    def _pass_s(self, num_nodes: int, more: int) -> float:
        """Seconds that so many of a pass' nodes add to it."""
        prices, num_nodes = self._prices, min(num_nodes, len(self._prices))
        if num_nodes <= more:
            return 0.0
        return float(prices[num_nodes - 1] - prices[num_nodes - 1 - more])

    def _record(self, new_tokens: NDArray[np.int32]) -> list[int]:
        """Find out whose nodes were right; returns how many tokens each source had, by number."""
        num_trees, right = 0, [0] * (len(self._sources) + 1)
        for source in self._sources:
            if source.tree:
                num_trees += 1
                tree, number, path = source.tree, source.number, source.path.tokens
                source.tree = None
                if path and new_tokens[: len(path)].tolist() != path:
                    continue
                right[number] = self._credit[number] = record_tree(
                    self.statistics.table,
                    number,
                    tree.tokens,
                    tree.parents,
                    tree.p_accept,
                    new_tokens,
                    len(path),
                )
        if num_trees > 1:  # the only one is the surest of all it said
            self._merged.record(new_tokens, self._credit)
        return right

    def _rate(self, source: Source) -> None:
        """Book what a call cost and brought, and decide when to call again."""
        right = int(self._credit[source.number])
        self._credit[source.number] = 0
        bill = min(source.spent_s, max(_LARGEST_BILL_S, _LARGEST_BILL * self.token_s))
        source.seconds += (_RATE if source.seconds else 1.0) * (bill - source.seconds)
        source.tokens += _RATE * (right - source.tokens)
        if right or (source.tokens + _CHEAP) * self.token_s >= source.seconds:
            source.silence = 0
        else:
            source.silence = min(max(2 * source.silence, 1), _LONGEST_WAIT)
        source.wait = source.silence
        source.asked = False

    def pause(self) -> None:
        for source in self._sources:
            source.drafter.pause()

    def told(self) -> tuple[tuple[str, ...], str]:
        """What went wrong, and whether drafting overlapped, of all drafters."""
        drafters = [source.drafter for source in self._sources]
        notes = tuple(note for drafter in drafters for note in drafter.notes)
        return notes, next((drafter.overlap for drafter in drafters if drafter.overlap), "")

    def shrink(self) -> int:
        return sum(source.drafter.shrink() for source in self._sources)

    def close(self) -> None:
        self.feed_all()
        for source in self._sources:
            source.drafter.close()
        self.statistics.save()

    def take_seconds(self) -> dict[str, float]:
        """Seconds each drafter has spent since this was last asked, those at work only."""
        spent = {}
        for source in self._sources:
            if source.spent_s:
                spent[source.drafter.name] = source.spent_s
                source.spent_s = 0.0
        return spent

    @property
    def size_bytes(self) -> int:
        """Bytes of all stores and of the market's own arrays."""
        own = self._merged.size_bytes + self.statistics.size_bytes
        own += self._scratch.size_bytes if self._scratch else 0
        return own + sum(source.drafter.size_bytes for source in self._sources)
