"""The draft market: every drafter proposes, equal prefixes become one node, the surest come first.

Drafters do not compete for a step; nodes do. Every drafter's score is mapped to the acceptance that
was observed for such scores, so that nodes of all sources have prices in one currency, and the
controller verifies as many of the best as the measured cost curve says pay back.

Free drafters that are tables of addresses (`grown.py`) are fed, asked, merged and told by two
compiled calls a step (`step.py`); others by Python, call by call. One that brings nothing falls
silent for a while; its store is fed when it is asked. One whose every proposal costs something is
asked after the others, by what its own account holds (`account.py`).

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
from edgespec.drafting.grown import OUTCOME_NEW, GrownDrafter
from edgespec.drafting.market.acceptance import AcceptanceStatistics, record_tree
from edgespec.drafting.market.account import NOTHING_COSTLY, CostlyAccount, CostlyStep
from edgespec.drafting.market.merging import LAST, MergedTree
from edgespec.drafting.market.source import Source, brought
from edgespec.drafting.market.step import (
    ASKED,
    CREDIT,
    FREE,
    IDLE,
    LEDGER,
    NUM_COLUMNS,
    NUM_PENDING,
    NUM_WORDS,
    OUTCOME,
    PENDING,
    READ,
    RIGHT,
    SILENCE,
    SIZE,
    TABLE,
    WAIT,
    draft,
    learn,
    learn_ratings,
)
from edgespec.drafting.proposal import Proposal
from edgespec.drafting.tree import NO_PATH, DraftTree, StepOutcome
from edgespec.system.addresses import AddressTable

if TYPE_CHECKING:
    from edgespec.backends.sequence import KvSequence
    from edgespec.verification.sampling import SamplingParams

MAX_SOURCES = 15
_SECOND_CHOICE = 16
"""One in so many costly proposals is of whoever was not asked for longest."""
_MOST_PENDING = 256
"""Tokens a store may lag behind: feeding more at once would be felt in one step."""
_FIRST_NODES = 15
_FIRST_NEW = 64
"""Nodes of a proposal, and new tokens of a step, that there is room for at first."""


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
    ) -> None:
        """Without `compiled` every drafter is asked by Python, which proposes the same."""
        self._sources = [Source(drafter, number) for number, drafter in enumerate(drafters, 1)]
        self._costly = [source for source in self._sources if source.drafter.costly]
        for source in self._costly:
            source.account = CostlyAccount()
        self._called: list[GrownDrafter] = []
        """Who is asked by compiled calls."""
        self._free: list[Source] = []
        """The other free ones."""
        for source in self._sources:
            drafter = source.drafter
            if compiled and isinstance(drafter, GrownDrafter) and drafter.callable_from_kernels:
                self._called.append(drafter)
            elif source.account is None:
                self._free.append(source)
        self._is_whole = len(self._called) == len(self._sources)
        """Whether nobody is left to be asked by Python."""
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
        self._proposed = False
        self._called_s = 0.0
        """Seconds of the compiled calls."""
        self._open_books()
        self._merged = MergedTree(self._core, self.statistics.table)
        self._most_nodes = 0
        self._reserve(_FIRST_NODES)
        self._scratch = Proposal(0) if self._costly else None
        """Where what follows others' drafts grows."""

    def _open_books(self) -> None:
        """The table that the compiled calls work on, and the ledger."""
        self._core = AddressTable(NUM_WORDS)
        self._words = memoryview(self._core.words)
        self._ledger = np.zeros((len(self._sources), NUM_COLUMNS), np.int64)
        self._credit = np.zeros(len(self._sources) + 1, np.int64)
        self._pending_tokens = np.zeros(_MOST_PENDING, np.int32)
        self._pending = memoryview(self._pending_tokens)
        """Tokens that some store may not have been fed."""
        self._room = 0
        """Tokens that may come before the called drafters' stores could be full."""
        for source, row in zip(self._sources, self._ledger, strict=True):
            row[FREE] = source.account is None
            if isinstance(source.drafter, GrownDrafter) and source.drafter in self._called:
                row[TABLE] = source.drafter.table.address
        self._core.bind(LEDGER, self._ledger)
        self._core.bind(CREDIT, self._credit)
        self._core.bind(PENDING, self._pending_tokens)
        self._make_new_tokens(_FIRST_NEW)

    def _make_new_tokens(self, most: int) -> None:
        self._new_tokens = np.zeros(most, np.int32)
        self._new = memoryview(self._new_tokens)
        """What came in the step that is observed."""
        self._core.bind(OUTCOME + OUTCOME_NEW, self._new_tokens)

    def _reserve(self, max_nodes: int) -> None:
        """Make room for proposals of so many nodes besides the root."""
        self._most_nodes = max_nodes
        others = len(self._sources) - len(self._costly)
        room = 1 + (others + len(self._costly) * len(self._sources)) * (max_nodes + 1)
        self._merged.reserve(room, max_nodes + 1)

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
        self.feed_all()  # the last words of the reply before: some keep them
        for source in self._sources:
            source.drafter.reset(tokens)
            source.tree, source.path, source.asked = None, NO_PATH, False
            if source.account is not None:
                source.account.begin()
        self._ledger[:, [ASKED, SIZE, WAIT, SILENCE, IDLE]] = 0
        self._words[LAST], self.costly_asked = int(tokens[-1]), False
        self._look_at_room()

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.step += 1
        words, pending, at = self._words, self._pending, self._words[NUM_PENDING]
        self._room -= len(tokens)
        if self._room < 0 or at + len(tokens) > _MOST_PENDING:
            self._read(tokens)
        else:
            for token in tokens:
                pending[at] = token
                at += 1
            words[NUM_PENDING] = at
        words[LAST] = tokens[-1]

    def _read(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Let all stores read these, too, now."""
        self.feed_all()
        for source in self._sources:
            start = self._clock()
            source.drafter.extend(tokens)
            source.spent_s += self._clock() - start
        self._look_at_room()

    def _look_at_room(self) -> None:
        """All has been read: see how many more tokens may come before somebody has to make room."""
        self._room = min((drafter.room for drafter in self._called), default=sys.maxsize)

    def feed_all(self) -> None:
        """Let all stores read what they have not read."""
        if not self._words[NUM_PENDING]:
            return
        for source in self._sources:
            start = self._clock()
            self._feed(source)
            source.spent_s += self._clock() - start
        self._ledger[:, READ] = 0
        self._words[NUM_PENDING] = 0
        self._look_at_room()

    def _feed(self, source: Source) -> None:
        row, count = self._ledger[source.number - 1], self._words[NUM_PENDING]
        if row[READ] < count:
            source.drafter.extend(self._pending_tokens[row[READ] : count].tolist())
            row[READ] = count

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
        if max_nodes > self._most_nodes:
            self._reserve(max_nodes)
        size = draft(self._core.address, max_nodes, free, self._is_whole)
        called_s = self._clock() - start
        self._called_s += called_s
        if self._is_whole:
            return self._merged.trees[size]
        if free:
            for source in self._free:
                self._ask(source, max_nodes)
        found = self._merged.likeliest(max_nodes + 1)
        if self._costly:
            found = self._ask_costly(found, max_nodes, free)
            self.costly_asked = any(source.asked for source in self._costly)
            self._plan_costly()
            if not free:  # all of this was for them
                self._called_s -= called_s
                self._costly[0].spent_s += self._clock() - start - self.costly_s
        return found

    def _ask(self, source: Source, max_nodes: int) -> None:
        """Merge a free source's proposal, if it is its turn."""
        row = self._ledger[source.number - 1]
        source.asked = bool(row[ASKED])
        if source.asked:
            start = self._clock()
            self._feed(source)
            tree = source.drafter.propose(max_nodes)
            if len(tree) > 1:
                source.tree, row[SIZE] = tree, len(tree)
                self._merged.add(tree, source.number)
            source.spent_s += self._clock() - start

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
            self._ledger[source.number - 1, SIZE] = len(found)
            self._merged.add(found, source.number, path.node)
            tree = self._merged.likeliest(max_nodes + 1)
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
        return self._merged.likeliest(max_nodes + 1)

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
                self._feed(source)  # what it learns belongs behind the text before this step
                source.drafter.observe(outcome)
                source.spent_s += self._clock() - start
            if source.account is None:
                source.asked = False
        if self.costly_asked:
            self.costly_asked = False
            self._settle(outcome, self._ledger[:, RIGHT].tolist())

    def _learn(self, outcome: StepOutcome) -> None:
        """Find out whose nodes were right, and let the called drafters learn."""
        start, self._proposed = self._clock(), False
        came = outcome.new_tokens
        if len(came) > len(self._new):
            self._make_new_tokens(2 * len(came))
        for place, token in enumerate(came):
            self._new[place] = token
        tree, core = outcome.tree, self._core.address
        learn(core, tree.tokens, tree.parents, len(came), self._is_whole)
        self._called_s += self._clock() - start
        if not self._is_whole:
            self._record(self._new_tokens[: len(came)])
            learn_ratings(core)

    def _settle(self, outcome: StepOutcome, right: list[int]) -> None:
        """Book what costly sources took and brought; `right` are each source's right tokens."""
        accepted = len(outcome.path) - 1
        free = (source for source in self._sources if source.account is None)
        others = max((right[source.number - 1] for source in free), default=0)
        seconds, nodes = 0.0, 0
        for source in self._costly:
            if source.asked and source.account is not None:
                source.asked = False
                own = brought(outcome.tree, source.number)
                seconds, nodes = seconds + source.spent_s, nodes + own
                knew_more = right[source.number - 1] > others
                tokens = (accepted if knew_more else min(accepted, others)) - others
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

    def _record(self, new_tokens: NDArray[np.int32]) -> None:
        """Count what the sources that Python asked had right."""
        for source in self._sources:
            if source.tree:
                tree, path = source.tree, source.path.tokens
                source.tree = None
                if path and new_tokens[: len(path)].tolist() != path:
                    continue
                self._ledger[source.number - 1, RIGHT] = record_tree(
                    self.statistics.table,
                    source.number,
                    tree.tokens,
                    tree.parents,
                    tree.p_accept,
                    new_tokens,
                    len(path),
                )

    def pause(self) -> None:
        for source in self._sources:
            source.drafter.pause()

    @property
    def notes(self) -> tuple[str, ...]:
        """What went wrong in this reply, of all drafters."""
        return tuple(note for source in self._sources for note in source.drafter.notes)

    @property
    def overlap(self) -> str:
        """Whether drafting overlapped with verifying, of the first drafter that can tell."""
        said = (source.drafter.overlap for source in self._sources)
        return next((clause for clause in said if clause), "")

    def shrink(self) -> int:
        self.feed_all()
        given = sum(source.drafter.shrink() for source in self._sources)
        self._look_at_room()
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
        if self._called_s and self._called:
            share, self._called_s = self._called_s / len(self._called), 0.0
            spent = {drafter.name: share for drafter in self._called}
        for source in self._sources:
            if source.spent_s:
                name = source.drafter.name
                spent[name] = spent.get(name, 0.0) + source.spent_s
                source.spent_s = 0.0
        return spent

    @property
    def size_bytes(self) -> int:
        """Bytes of all stores and of the market's own arrays."""
        books = (self._core.words, self._ledger, self._credit, self._pending_tokens)
        own = sum(book.nbytes for book in (*books, self._new_tokens))
        own += self._merged.size_bytes + self.statistics.size_bytes
        own += self._scratch.size_bytes if self._scratch else 0
        return own + sum(source.drafter.size_bytes for source in self._sources)
