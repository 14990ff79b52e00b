"""Whose drafts to verify when several texts share a pass: those that pay most, whosever they are.

All texts' nodes compete by the probability of their paths, and as many of the likeliest are taken
as maximise goodput on the measured cost curve ("TETRIS: Optimal Draft Token Selection for Batch
Speculative Decoding"; there the number of nodes is given, here it follows from the curve as in
`controller.py`). A text that nobody can foretell leaves its share to the others.

As for one text, speculation never costs: an account holds what it may lose, and drafters of texts
they are wrong about are asked less often where asking is costly. Drafters whose proposals cost
something have accounts of their own, for each text (`drafting/market/account.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.control.controller import (
    ALLOWANCE,
    CHEAP_DRAFT,
    CREDIT_PASSES,
    DEBT_PASSES,
    DRAFT_RATE,
    GAIN_RATE,
    LARGEST_BILL,
    LONGEST_SILENCE,
    MARGIN,
    OPENING_PASSES,
    PROBE_ALLOWANCE,
    SAMPLE,
    STUDY_ALLOWANCE,
    YARDSTICK_STEPS,
)
from edgespec.control.cost_curve import CostCurve
from edgespec.drafting.market.account import NOTHING_COSTLY, CostlyStep
from edgespec.drafting.tree import DraftTree, StepOutcome


@dataclass(slots=True)
class Bid:
    """One text's part in the allotment: what its proposals bring, and when to ask for the next."""

    gain_s: float = 0.0
    """What asking has gained lately, its own price left out."""
    silence: int = 0
    wait: int = 0
    """Steps to come in which its drafters are not to be asked."""
    asked: bool = False
    tree: DraftTree | None = None
    """The proposal, until its outcome is known."""

    def was_right(self, outcome: StepOutcome, costly: CostlyStep) -> bool:
        """Whether the proposal's surest node was the text's next token; that of the free drafters
        where costly ones had a part in it.
        """
        if costly.asked:
            return costly.others_right
        return self.tree is not None and bool(self.tree.tokens[1] == outcome.new_tokens[0])


class Allotment:
    """Shares the nodes of passes among texts and learns from what became of them.

    Per step: for each text that does not wait `draft_room` (0: do not draft) and its proposal; then
    `choose`, verification, `observe`.
    """

    def __init__(self, curve: CostCurve, max_nodes: int) -> None:
        self.curve = curve
        self.max_nodes = min(max_nodes, curve.max_nodes)
        """Most nodes of a pass, roots included."""
        self._account_s = OPENING_PASSES * curve.seconds(1)
        self._probe_s = 0.0
        """What may be spent on proposals that cannot be verified now."""
        self._reserved_s = 0.0
        """What was taken out of that for this step's; their bill follows."""
        self._study_s = 0.0
        self._draft_s = 0.0
        """What asking for one text typically takes, telling the drafters what came of it too."""
        self._since_plain = 0

    def draft_room(
        self, bid: Bid, limit: int, num_texts: int, *, free: bool = True, costly: bool = False
    ) -> int:
        """How many nodes besides its root a text's drafters may propose now; 0 means that asking
        them does not pay. `bid.asked` then tells whether the free ones are to be; `costly` says
        that the accounts of costly ones bear asking them.
        """
        bid.asked = False
        room = min(self.max_nodes - num_texts, limit)
        if room < 1:
            return 0
        if not free:
            return room if costly else 0
        if self._account_s <= self._draft_s and not self._drafting_is_cheap(num_texts):
            if self._probe_s < self._draft_s:
                bid.wait = SAMPLE
                return room if costly else 0
            self._probe_s -= self._draft_s
            self._reserved_s += self._draft_s
        bid.asked = True
        return room

    @property
    def may_study(self) -> bool:
        """Whether drafters that learn from logits may look at those of texts nobody drafted for."""
        return self._study_s >= 0.0

    def _drafting_is_cheap(self, num_texts: int) -> bool:
        return self._draft_s <= CHEAP_DRAFT * self.curve.seconds(num_texts) / num_texts

    def choose(
        self,
        bids: Sequence[Bid],
        trees: Sequence[DraftTree],
        draft_s: float,
        risk_s: float = 0.0,
    ) -> list[int]:
        """How many nodes of each tree besides the root to verify: `tree.take(1 + k)`.

        Nodes come surest first, with calibrated `p_accept`; `draft_s` is what all proposals took.
        Costly drafters' accounts bear a pass that is `risk_s` longer.
        """
        num_texts, counts = len(trees), [0] * len(trees)
        if all(len(tree) == 1 for tree in trees):
            return counts
        for bid, tree in zip(bids, trees, strict=True):
            bid.tree = tree if len(tree) > 1 else None
        risk_s = max(self._account_s, risk_s)
        if risk_s <= 0.0 or self._since_plain >= YARDSTICK_STEPS:
            return counts
        nodes = [
            (chance, text) for text, tree in enumerate(trees) for chance in _path_chances(tree)
        ]
        nodes.sort(key=lambda node: -node[0])  # stable: a text's nodes keep their order
        seconds = self.curve.table
        plain = float(seconds[num_texts - 1])
        expected, taken = float(num_texts), 0
        best_goodput = MARGIN * num_texts / (plain + draft_s)
        for count, (chance, _) in enumerate(nodes[: self.max_nodes - num_texts], 1):
            price = float(seconds[num_texts - 1 + count])
            if price - plain > risk_s:
                break
            expected += chance
            if expected / (price + draft_s) > best_goodput:
                best_goodput, taken = expected / (price + draft_s), count
        for _, text in nodes[:taken]:
            counts[text] += 1
        return counts

    def observe(
        self,
        bids: Sequence[Bid],
        outcomes: Sequence[StepOutcome],
        seconds: float,
        draft_s: float,
        study_s: float = 0.0,
        costly: Sequence[CostlyStep] = (),
    ) -> None:
        """Learn from a step: all trees together took `seconds` to verify, and `draft_s` to draft
        with telling the drafters what came of it; `study_s` those of texts nobody drafted for;
        `costly` is the costly drafters' part in each text.
        """
        costly = costly or [NOTHING_COSTLY] * len(outcomes)
        num_texts, num_nodes = len(outcomes), sum(len(outcome.tree) for outcome in outcomes)
        self.curve.update(num_nodes, seconds)
        self._since_plain = self._since_plain + 1 if num_nodes > num_texts else 0
        num_nodes -= sum(step.nodes for step in costly)
        draft_s = max(draft_s - sum(step.seconds for step in costly), 0.0)
        plain = self.curve.seconds(num_texts)
        if num_nodes == num_texts and self._account_s <= 0.0:
            self._settle_unverified(bids, outcomes, costly, plain)
        num_tokens = sum(len(outcome.path) for outcome in outcomes)
        num_tokens -= sum(step.tokens for step in costly)
        spent = self.curve.seconds(num_nodes) + min(draft_s, LARGEST_BILL * plain)
        balance = self._account_s + num_tokens * plain / num_texts - spent
        if balance < OPENING_PASSES * plain:
            balance += ALLOWANCE * spent
        self._account_s = min(balance, CREDIT_PASSES * plain)
        if self._reserved_s > 0.0:
            self._probe_s += self._reserved_s - min(draft_s, LARGEST_BILL * plain)
            self._reserved_s = 0.0
        self._probe_s = min(self._probe_s + PROBE_ALLOWANCE * spent, LARGEST_BILL * plain)
        if num_asked := sum(bid.asked for bid in bids):
            # Down at once, up slowly: the first call may have compiled a kernel.
            bill = min(draft_s / num_asked, LARGEST_BILL * plain)
            self._draft_s += (DRAFT_RATE if bill > self._draft_s else 1.0) * (bill - self._draft_s)
        self._study_s = min(self._study_s + STUDY_ALLOWANCE * spent, plain) - study_s
        share = (self.curve.seconds(num_nodes) - plain) / max(num_nodes - num_texts, 1)
        for bid, outcome, step in zip(bids, outcomes, costly, strict=True):
            if bid.asked:
                gain_s = (len(outcome.path) - 1 - step.tokens) * plain / num_texts
                gain_s -= (len(outcome.tree) - 1 - step.nodes) * share
                bid.gain_s += GAIN_RATE * (gain_s - bid.gain_s)
                self._set_silence(bid, bid.was_right(outcome, step), num_texts)
            bid.tree, bid.asked = None, False

    def _settle_unverified(
        self,
        bids: Sequence[Bid],
        outcomes: Sequence[StepOutcome],
        costly: Sequence[CostlyStep],
        plain: float,
    ) -> None:
        """Book what verifying the best node would have brought, while the account is empty."""
        best, right = 0.0, False
        for bid, outcome, step in zip(bids, outcomes, costly, strict=True):
            ours = bid.asked or not step.asked
            if ours and bid.tree is not None and bid.tree.p_accept[1] > best:
                best, right = float(bid.tree.p_accept[1]), bid.was_right(outcome, step)
        if best > 0.0:
            cost = self.curve.seconds(len(bids) + 1) - plain
            gain = right * plain / len(bids) - cost
            # A debt that no evidence can repay soon would outlast the phase that made it.
            floor = min(self._account_s, -DEBT_PASSES * plain)
            self._account_s = max(self._account_s + gain, floor)

    def _set_silence(self, bid: Bid, was_right: bool, num_texts: int) -> None:
        """Wait twice as long after each proposal that was wrong, unless drafting pays."""
        if was_right or self._drafting_is_cheap(num_texts) or self._draft_s <= bid.gain_s:
            bid.silence = 0
        else:
            bid.silence = min(max(2 * bid.silence, 1), LONGEST_SILENCE)
        bid.wait = bid.silence


def _path_chances(tree: DraftTree) -> list[float]:
    """For the nodes besides the root, in order: how likely all of their path is accepted.

    Never rising, as no node comes before one that is surer.
    """
    if len(tree) == 1:
        return []
    chances, lowest = [1.0], 1.0
    for parent, chance in zip(tree.parents[1:].tolist(), tree.p_accept[1:].tolist(), strict=True):
        lowest = min(lowest, chances[parent] * chance)
        chances.append(lowest)
    return chances[1:]
