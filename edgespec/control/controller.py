"""Decides, step by step, whom to ask for drafts and how many of their nodes to verify.

One sequence is a batch of one. How many nodes pay is `node_choice.py`'s rule on the measured cost
curve; zero is plain decoding.

Speculation never costs: an account holds what speculation may lose, 0.75 % of the time spent. Steps
pay in and out of it by the curve's prices, and no step may risk more than it holds. Proposals that
are not verified are still compared with the tokens that came, which costs nothing but the drafting;
while the account is empty, what verifying their best node would have gained is booked, so a
sequence that turns predictable reopens it within a few tokens. Asking pays for itself: what it has
gained in a sequence it may spend on being wrong, so that a dry stretch silences nobody who will be
right again. After that the controller asks less and less often, until a proposal is right, but
always as often as 0.5 % of the time allows; and while the account is empty, that is all it spends,
right proposals not counted. Drafters whose proposals cost something have accounts of their own
(`drafting/market/account.py`): what they took and brought is left out here, and they may be asked
while the others are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.control import accounts
from edgespec.control.cost_curve import CostCurve
from edgespec.control.node_choice import NodeChoice
from edgespec.control.prospects import Prospects
from edgespec.drafting.market.account import NOTHING_COSTLY, CostlyStep
from edgespec.drafting.tree import DraftTree, StepOutcome

START_PASSES = 2.0
"""What of its gains a reply may risk that has gained nothing itself, in plain passes."""


class Controller:
    """Chooses how much of each proposal is verified and learns from what became of it.

    Per step, for each sequence that does not wait: `draft_room` (0: do not draft) and its drafters'
    proposal; then `choose`, verification, `observe`, or `rest` where nobody was asked. A plain pass
    is one over a root for each of the sequences.
    """

    is_compiled = True
    """Whether it decides by the rules of `accounts.py` alone, so that kernels may call them."""

    def __init__(self, curve: CostCurve, max_nodes: int) -> None:
        self.curve = curve
        self.max_nodes = min(max_nodes, curve.max_nodes)
        """Most nodes of a pass, roots included."""
        self.choice = NodeChoice()
        self.numbers: NDArray[np.float64] = np.zeros(accounts.NUM_NUMBERS)
        """What the rules in `accounts.py` keep."""
        self.numbers[accounts.ACCOUNT_S] = accounts.OPENING_PASSES * curve.seconds(1)

    def begin(self) -> None:
        """A reply begins: it risks little of what earlier ones gained."""
        most = START_PASSES * self.curve.seconds(1)
        self.numbers[accounts.ACCOUNT_S] = min(self.numbers[accounts.ACCOUNT_S], most)

    def draft_room(
        self,
        prospects: Prospects,
        limit: int,
        num_sequences: int = 1,
        *,
        free: bool = True,
        costly: bool = False,
    ) -> int:
        """How many nodes besides its root a sequence's drafters may propose now; 0 means that
        asking does not pay. Afterwards `prospects.asked` tells whether the free ones are to be.

        `limit` is the request's cap. `free` and `costly` say whether there are drafters of the
        kind, and of the costly ones whether their accounts bear asking them.
        """
        prospects.asked = False
        room = max(min(self.max_nodes - num_sequences, limit), 0)
        waits = prospects.waits()
        if room and free and not waits:
            token_s = self.curve.seconds(num_sequences) / num_sequences
            prospects.asked = accounts.may_ask(self.numbers, prospects.numbers, token_s)
        return room if prospects.asked or costly else 0

    def choose(
        self,
        prospects: Sequence[Prospects],
        trees: Sequence[DraftTree],
        draft_s: float = 0.0,
        *,
        costly_s: float = 0.0,
        risk_s: float = 0.0,
    ) -> list[int]:
        """How many nodes of each tree besides its root to verify: `tree.take(1 + k)`.

        Nodes come surest first, with calibrated `p_accept`; `draft_s` is what all proposals took,
        in seconds, of it `costly_s` costly drafters, whose accounts bear a pass that is `risk_s`
        longer.
        """
        num_sequences, num_asked, drafted = len(trees), 0, False
        for one, tree in zip(prospects, trees, strict=True):
            one.proposal = tree if len(tree) > 1 else None
            drafted |= one.proposal is not None
            num_asked += one.asked
        if num_asked and draft_s > 0.0:
            bill = max(draft_s - costly_s, 0.0) / num_asked
            accounts.expect_bill(self.numbers, bill, self.curve.seconds(num_sequences))
        risk_s = max(self.numbers.item(accounts.ACCOUNT_S), risk_s)
        if not drafted or risk_s <= 0.0 or not accounts.may_verify(self.numbers):
            return [0] * num_sequences
        most = self.max_nodes - num_sequences
        return self.choice.counts(trees, self.curve.table, draft_s, risk_s, most)

    def observe(
        self,
        prospects: Sequence[Prospects],
        outcomes: Sequence[StepOutcome],
        seconds: float,
        draft_s: float = 0.0,
        study_s: float = 0.0,
        costly: Sequence[CostlyStep] = (),
        experts: int = 0,
    ) -> None:
        """Learn from a step: all trees together took `seconds` to verify, and read so many experts.

        `draft_s` is all that drafters cost in it, with feeding them the new tokens, `study_s` what
        they took to look at logits of sequences that nobody drafted for, and `costly` the costly
        ones' part in each sequence. `outcome.new_tokens` must be filled.
        """
        costly = costly or [NOTHING_COSTLY] * len(outcomes)
        own, table = self.numbers, self.curve.table
        num_sequences, num_nodes = len(outcomes), sum(len(outcome.tree) for outcome in outcomes)
        self.curve.update(num_nodes, seconds, experts)
        own[accounts.SINCE_PLAIN] = (
            own[accounts.SINCE_PLAIN] + 1 if num_nodes > num_sequences else 0
        )
        num_nodes -= sum(step.nodes for step in costly)
        num_tokens = sum(len(outcome.path) for outcome in outcomes)
        num_tokens -= sum(step.tokens for step in costly)
        num_asked = sum(one.asked for one in prospects)
        draft_s = max(draft_s - sum(step.seconds for step in costly), 0.0) if num_asked else 0.0
        plain = self.curve.seconds(num_sequences)
        token_s = plain / num_sequences
        was_short = accounts.is_short(own, token_s)
        if num_asked and was_short and num_nodes == num_sequences:
            self._settle_unverified(prospects, outcomes, costly, draft_s)
        accounts.settle(own, table, num_sequences, num_nodes, num_tokens, draft_s, num_asked)
        spent = self.curve.seconds(num_nodes)
        accounts.earn_study(own, table, spent, study_s)
        share = (spent - plain) / max(num_nodes - num_sequences, 1)
        for one, outcome, step in zip(prospects, outcomes, costly, strict=True):
            if one.asked and not was_short:
                gain_s = (len(outcome.path) - 1 - step.tokens) * token_s
                gain_s -= (len(outcome.tree) - 1 - step.nodes) * share
                accounts.judge(own, one.numbers, token_s, gain_s, one.was_right(outcome, step))
            one.proposal, one.asked = None, False

    def _settle_unverified(
        self,
        prospects: Sequence[Prospects],
        outcomes: Sequence[StepOutcome],
        costly: Sequence[CostlyStep],
        draft_s: float,
    ) -> None:
        """Book what verifying the best node would have brought while the account is short."""
        best, was_right = 0.0, False
        for one, outcome, step in zip(prospects, outcomes, costly, strict=True):
            if one.asked and one.proposal is not None and one.proposal.p_accept[1] > best:
                best, was_right = float(one.proposal.p_accept[1]), one.was_right(outcome, step)
        if best > 0.0:
            table = self.curve.table
            accounts.settle_unverified(self.numbers, table, len(outcomes), was_right, draft_s)

    @property
    def may_study(self) -> bool:
        """Whether drafters that learn from logits may look at those of a sequence that nobody
        drafted for.
        """
        return self.numbers.item(accounts.STUDY_S) >= 0.0

    def rest(
        self, seconds: float, study_s: float = 0.0, num_sequences: int = 1, experts: int = 0
    ) -> None:
        """Learn from a pass that nobody drafted for, which must cost next to nothing.

        It took `seconds` and read so many experts, and drafters `study_s` to look at its logits.
        """
        if accounts.rest(self.numbers, study_s):
            self.curve.update(num_sequences, seconds, experts)
            accounts.earn(self.numbers, self.curve.table, num_sequences)

    @property
    def size_bytes(self) -> int:
        """Bytes of its buffers."""
        return self.choice.size_bytes + self.numbers.nbytes
