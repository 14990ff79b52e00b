"""Who of the costly drafters is asked beside the others, and what became of that.

A model's chain begins where it is most needed: at the end of that part of the others' surest path
which is likeliest to come and not to be followed by what they say, often its last node. Where the
chain ends they are asked for what follows it.

What a proposal brought is what the step came to less what it would have come to without it: the
others' tree is kept, with as many of its nodes as would have been worth verifying.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.market.account import CostlyStep
from edgespec.drafting.market.books import Books
from edgespec.drafting.market.source import Source, brought
from edgespec.drafting.market.step import RIGHT, SIZE
from edgespec.drafting.proposal import Proposal
from edgespec.drafting.tree import NO_PATH, DraftTree, StepOutcome

_NOTHING = DraftTree.root(0)
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
        self._without = _NOTHING
        """The others' tree in this step."""
        self._num_nodes = 0
        """What a costly drafter proposed in it, besides the root."""

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
        self._without = DraftTree(
            tree.tokens.copy(), tree.parents.copy(), tree.p_accept.copy(), tree.sources.copy()
        )
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
        room = max_nodes - len(path.tokens)
        if source.account is not None:
            room = source.account.room(room)
        self._books.feed(source)
        if path.tokens and self._scratch:
            found = drafter.propose_after(path, room, self._scratch)
        else:
            found = drafter.propose(room)
        self._num_nodes = len(found) - 1
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
        """Book what the costly source that was asked took and brought; a pass over n nodes takes
        prices[n - 1].
        """
        source = next((source for source in self._books.costly if source.asked), None)
        assert source is not None and source.account is not None
        source.asked = self.asked = False
        right = self._books.ledger[:, RIGHT].tolist()
        knew = (right[one.number - 1] for one in self._books.sources if one.account is None)
        num_tokens = num_nodes = 0
        gain = more = 0.0
        if brought(outcome.tree, source.number):
            without = self._without.take(worth_verifying(self._without, prices))
            num_tokens = len(outcome.path) - 1 - num_right(without, outcome.new_tokens)
            num_nodes = len(outcome.tree) - len(without)
            more_s = _price_s(prices, len(outcome.tree)) - _price_s(prices, len(without))
            more = more_s / token_s
            gain = num_tokens - more
        once = source.drafter.late_s / token_s if source.rested else 0.0
        nodes, more = self._num_nodes, max(more, 0.0)
        source.account.settle(source.spent_s / token_s, gain, once, nodes=nodes, more=more)
        self.plan()
        return CostlyStep(source.spent_s, num_tokens, num_nodes, True, any(knew))

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


def worth_verifying(tree: DraftTree, prices: NDArray[np.float64]) -> int:
    """How many nodes of a tree bring the most tokens a second, root included, where a pass over n
    nodes takes prices[n - 1].
    """
    chances = tree.p_accept.tolist()
    best, fastest, tokens = 1, 0.0, 0.0
    for node, (parent, price_s) in enumerate(
        zip(tree.parents.tolist(), prices.tolist(), strict=False)
    ):
        chances[node] *= chances[parent] if node else 1.0
        tokens += chances[node]
        if tokens > fastest * price_s:
            best, fastest = node + 1, tokens / price_s
    return best


def num_right(tree: DraftTree, new_tokens: Sequence[int] | NDArray[np.int32]) -> int:
    """How many of the tokens that came, from the first one on, a tree has on one path."""
    at = count = 0
    tokens = tree.tokens.tolist()
    for node, parent in enumerate(tree.parents.tolist()):
        if parent == at and node and count < len(new_tokens) and tokens[node] == new_tokens[count]:
            at, count = node, count + 1
    return count


def _price_s(prices: NDArray[np.float64], num_nodes: int) -> float:
    """Seconds of a pass, 0 where none was ever priced."""
    return float(prices[min(num_nodes, len(prices)) - 1]) if len(prices) else 0.0
