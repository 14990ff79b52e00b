"""Who of the costly drafters is asked beside the others, and what became of that.

A model's chain begins where it is most needed: at the end of that part of the others' surest path
which is likeliest to come and not to be followed by what they say, often its last node. Where the
chain ends they are asked for what follows it.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.market.account import CostlyStep
from edgespec.drafting.market.books import Books
from edgespec.drafting.market.source import Source, brought
from edgespec.drafting.market.step import RIGHT, SIZE
from edgespec.drafting.proposal import Proposal
from edgespec.drafting.tree import NO_PATH, DraftTree, StepOutcome

_SECOND_CHOICE, _RAREST = 16, 64
"""One in so many costly proposals is of whoever was not asked for longest, and ever fewer of them
while the same one stays the best: each takes the place of a better one.
"""


class CostlyDrafts:
    """Asks at most one costly source a step, as its account bears."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.at = 0 if books.costly else sys.maxsize
        """The market's step from which a costly drafter is to be asked."""
        self.asked = False
        """Whether one was asked in this step."""
        self._turns = 0
        """Proposals of costly drafters."""
        self._best: Source | None = None
        self._look_at = self._patience = _SECOND_CHOICE
        """The proposal that is another's than the best's, and how many come before the next."""
        self._scratch = Proposal(0) if books.costly else None
        """Where what follows others' drafts grows."""

    def ask(self, tree: DraftTree, max_nodes: int, free: bool, step: int) -> DraftTree:
        """The others' tree with what one costly source adds, if an account bears asking: two would
        draft the same tokens twice.
        """
        wanting = [source for source in self._books.costly if self._wants(source, tree, step)]
        self.asked = False
        if not wanting:
            self.plan()
            return tree
        chosen = self._choose(wanting)
        tree = self._draft_after(chosen, tree, max_nodes, free)
        self.asked = chosen.asked
        self.plan()
        return tree

    def _choose(self, wanting: list[Source]) -> Source:
        """The one whose proposals are worth most, now and then another."""
        best = max(wanting, key=lambda source: source.account.worth if source.account else 0.0)
        self._turns += 1
        if len(wanting) > 1 and best is not self._best:
            self._best, self._patience = best, _SECOND_CHOICE
            self._look_at = min(self._look_at, self._turns + self._patience)
        elif self._turns >= self._look_at:
            self._patience = min(2 * self._patience, _RAREST)
            self._look_at = self._turns + self._patience
            best = min(wanting, key=lambda source: source.turn)
        best.rested = best.turn < self._turns - 1
        best.turn = self._turns
        return best

    def _wants(self, source: Source, tree: DraftTree, step: int) -> bool:
        """Whether a costly source's account bears asking it beside the others' tree."""
        account, drafter = source.account, source.drafter
        source.tree, source.asked, source.path = None, False, NO_PATH
        if account is None or not account.may_want(step):
            return False
        if drafter.follows:
            source.path = tree.end_of_knowledge()
        sure = float(tree.p_accept[1]) if len(tree) > 1 else 0.0
        return account.wants(step, sure, follows=bool(source.path.tokens))

    def _draft_after(
        self, source: Source, tree: DraftTree, max_nodes: int, free: bool
    ) -> DraftTree:
        """The others' tree with a costly source's proposal, where its path ends."""
        start, drafter, path = self._books.clock(), source.drafter, source.path
        self._books.feed(source)
        if path.tokens and self._scratch:
            found = drafter.propose_after(path, max_nodes - len(path.tokens), self._scratch)
        else:
            found = drafter.propose(max_nodes)
        # One that says nothing after a path found it too unsure: it was not asked.
        source.asked = len(found) > 1 or not path.tokens
        if len(found) > 1:
            source.tree = found
            self._books.ledger[source.number - 1, SIZE] = len(found)
            self._books.merged.add(found, source.number, path.node)
            tree = self._books.merged.likeliest(max_nodes + 1)
            if free:
                tree = self._go_on(source, tree, max_nodes)
        source.spent_s += self._books.clock() - start - drafter.saved_s
        return tree

    def _go_on(self, costly: Source, tree: DraftTree, max_nodes: int) -> DraftTree:
        """The tree with what free sources say to follow a costly one's chain, if that is surest."""
        path, room = tree.surest(), max_nodes + 1 - len(tree)
        if room < 1 or self._scratch is None or tree.sources[path.node] != costly.number:
            return tree
        for source in self._books.sources:
            if source.account is None and source.drafter.follows:
                self._books.feed(source)
                found = source.drafter.propose_after(path, room, self._scratch)
                if len(found) > 1:
                    self._books.merged.add(found, source.number, path.node)
        return self._books.merged.likeliest(max_nodes + 1)

    def settle(
        self, outcome: StepOutcome, prices: NDArray[np.float64], token_s: float
    ) -> CostlyStep:
        """Book what costly sources took and brought; a pass over n nodes takes prices[n - 1]."""
        right = self._books.ledger[:, RIGHT].tolist()
        accepted = len(outcome.path) - 1
        free = (source for source in self._books.sources if source.account is None)
        others = max((right[source.number - 1] for source in free), default=0)
        seconds, nodes = 0.0, 0
        for source in self._books.costly:
            if source.asked and source.account is not None:
                source.asked = False
                own = brought(outcome.tree, source.number)
                seconds, nodes = seconds + source.spent_s, nodes + own
                knew_more = right[source.number - 1] > others
                tokens = (accepted if knew_more else min(accepted, others)) - others
                gain = tokens - _added_s(prices, len(outcome.tree), own) / token_s
                once = source.drafter.late_s / token_s if source.rested else 0.0
                source.account.settle(source.spent_s / token_s, gain, once)
        self.asked = False
        self.plan()
        return CostlyStep(seconds, accepted - others, nodes, True, others > 0)

    def plan(self) -> None:
        """Work out when a costly source is to be asked next."""
        steps = (source.account.next_step for source in self._books.costly if source.account)
        self.at = min(steps, default=sys.maxsize)

    @property
    def seconds(self) -> float:
        """What costly drafters took in this step so far."""
        return sum(source.spent_s for source in self._books.costly)

    @property
    def risk(self) -> float:
        """Plain passes that those who were asked may lose."""
        costly = self._books.costly
        asked = (source.account.balance for source in costly if source.tree and source.account)
        return max(asked, default=0.0)

    @property
    def size_bytes(self) -> int:
        """Bytes of the scratch."""
        return self._scratch.size_bytes if self._scratch else 0


def _added_s(prices: NDArray[np.float64], num_nodes: int, more: int) -> float:
    """Seconds that so many of a pass' nodes add to it."""
    num_nodes = min(num_nodes, len(prices))
    if num_nodes <= more:
        return 0.0
    return float(prices[num_nodes - 1] - prices[num_nodes - 1 - more])
