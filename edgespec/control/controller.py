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

import math
from collections.abc import Sequence

from edgespec.control.cost_curve import CostCurve
from edgespec.control.node_choice import NodeChoice
from edgespec.control.prospects import Prospects
from edgespec.drafting.market.account import NOTHING_COSTLY, CostlyStep
from edgespec.drafting.tree import DraftTree, StepOutcome

ALLOWANCE = 0.0075
"""Part of the time spent that speculation may lose when drafts are verified."""
OPENING_PASSES = 1.5
"""What it may lose at the start, in plain passes: enough to try."""
CREDIT_PASSES = 16.0
"""Gains kept to be risked again, in plain passes."""
START_PASSES = 6.0
"""What of them a reply may risk that has gained nothing itself."""
DEBT_PASSES = 3.0
"""Evidence of proposals that were not verified deepens a debt to this at most."""
PROBE_ALLOWANCE = 0.005
"""Part of the time spent that drafts may take which cannot be verified now."""
STUDY_ALLOWANCE = 0.003
"""Part of the time spent that looking at logits may take in steps without drafts."""
SAMPLE = 4
"""One in so many passes that nobody drafted for is looked at: nothing is decided by them."""
YARDSTICK_STEPS = 128
"""One plain pass after this many others keeps the price of plain decoding true."""
DRAFT_RATE = 0.1
LARGEST_SURPRISE = 4.0
"""What a proposal counts as at most, in typical ones, where it is not settled in the account."""
LARGEST_BILL = 2.5
"""Plain passes that a step's drafting is charged at most: compiling a kernel is no draft."""


class Controller:
    """Chooses how much of each proposal is verified and learns from what became of it.

    Per step, for each sequence that does not wait: `draft_room` (0: do not draft) and its drafters'
    proposal; then `choose`, verification, `observe`, or `rest` where nobody was asked. A plain pass
    is one over a root for each of the sequences.
    """

    def __init__(self, curve: CostCurve, max_nodes: int) -> None:
        self.curve = curve
        self.max_nodes = min(max_nodes, curve.max_nodes)
        """Most nodes of a pass, roots included."""
        self._choice = NodeChoice()
        self._draft_s = 0.0
        """A typical proposal's seconds, for one sequence."""
        self._account_s = OPENING_PASSES * curve.seconds(1)
        self._probe_s = 0.0
        """What may be spent on proposals that cannot be verified now."""
        self._promised_s = 0.0
        """What of it was promised to proposals of this step."""
        self._study_s = 0.0
        self._since_plain = 0
        self._plain_passes = 0

    def begin(self) -> None:
        """A reply begins: it risks little of what earlier ones gained."""
        self._account_s = min(self._account_s, START_PASSES * self.curve.seconds(1))

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
        if prospects.wait:
            prospects.wait -= 1
            free = False
        if not room or not free:
            return room if costly else 0
        if self._is_short(num_sequences):
            if self._probe_s - self._promised_s < self._draft_s:
                prospects.wait = SAMPLE - 1  # and not before something is earned
                return room if costly else 0
            self._promised_s += self._draft_s
        prospects.asked = True
        return room

    def _is_short(self, num_sequences: int) -> bool:
        """Whether the account cannot bear one more proposal that nothing comes of."""
        return self._account_s <= 0.0 or (
            self._account_s < self._draft_s and not self._drafting_is_cheap(num_sequences)
        )

    def _drafting_is_cheap(self, num_sequences: int) -> bool:
        """Whether asking in every step takes no more than may always be spent on it."""
        return self._draft_s <= PROBE_ALLOWANCE * self.curve.seconds(num_sequences) / num_sequences

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
            bill = self._usual(min(bill, LARGEST_BILL * self.curve.seconds(num_sequences)))
            # Down at once, up slowly: the first call may have compiled a kernel.
            self._draft_s += (DRAFT_RATE if bill > self._draft_s else 1.0) * (bill - self._draft_s)
        risk_s = max(self._account_s, risk_s)
        if not drafted or risk_s <= 0.0 or self._since_plain >= YARDSTICK_STEPS:
            return [0] * num_sequences
        most = self.max_nodes - num_sequences
        return self._choice.counts(trees, self.curve.table, draft_s, risk_s, most)

    def observe(
        self,
        prospects: Sequence[Prospects],
        outcomes: Sequence[StepOutcome],
        seconds: float,
        draft_s: float = 0.0,
        study_s: float = 0.0,
        costly: Sequence[CostlyStep] = (),
    ) -> None:
        """Learn from a step: all trees together took `seconds` to verify.

        `draft_s` is all that drafters cost in it, with feeding them the new tokens, `study_s` what
        they took to look at logits of sequences that nobody drafted for, and `costly` the costly
        ones' part in each sequence. `outcome.new_tokens` must be filled.
        """
        costly = costly or [NOTHING_COSTLY] * len(outcomes)
        num_sequences, num_nodes = len(outcomes), sum(len(outcome.tree) for outcome in outcomes)
        plain = self.curve.seconds(num_sequences)
        self.curve.update(num_nodes, seconds)
        self._since_plain = self._since_plain + 1 if num_nodes > num_sequences else 0
        num_nodes -= sum(step.nodes for step in costly)
        num_tokens = sum(len(outcome.path) for outcome in outcomes)
        num_tokens -= sum(step.tokens for step in costly)
        num_asked = sum(one.asked for one in prospects)
        draft_s = max(draft_s - sum(step.seconds for step in costly), 0.0) if num_asked else 0.0
        was_short = self._is_short(num_sequences)
        if num_asked and was_short and num_nodes == num_sequences:
            self._settle_unverified(prospects, outcomes, costly, draft_s)
        self._settle(num_nodes, num_tokens, draft_s, num_sequences, num_asked)
        self._earn_study(self.curve.seconds(num_nodes), study_s)
        share = (self.curve.seconds(num_nodes) - plain) / max(num_nodes - num_sequences, 1)
        for one, outcome, step in zip(prospects, outcomes, costly, strict=True):
            if one.asked and not was_short:
                gain_s = (len(outcome.path) - 1 - step.tokens) * plain / num_sequences
                gain_s -= (len(outcome.tree) - 1 - step.nodes) * share
                one.earn((gain_s - self._draft_s) * num_sequences / plain)
                self._set_silence(one, one.was_right(outcome, step), num_sequences)
            one.proposal, one.asked = None, False

    @property
    def may_study(self) -> bool:
        """Whether drafters that learn from logits may look at those of a sequence that nobody
        drafted for.
        """
        return self._study_s >= 0.0

    def rest(self, seconds: float, study_s: float = 0.0, num_sequences: int = 1) -> None:
        """Learn from a pass that nobody drafted for, which must cost next to nothing.

        It took `seconds`, and drafters `study_s` to look at its logits.
        """
        self._study_s -= study_s
        self._since_plain = 0
        self._plain_passes += 1
        if self._plain_passes % SAMPLE == 0:
            self.curve.update(num_sequences, seconds)
            plain = self.curve.seconds(num_sequences)
            earned = SAMPLE * plain
            self._earn_study(earned)
            if self._is_short(num_sequences):
                self._earn_probe(earned, plain)
            if self._account_s < OPENING_PASSES * plain:
                self._account_s += ALLOWANCE * earned

    def _earn_study(self, spent: float, study_s: float = 0.0) -> None:
        most = SAMPLE * self.curve.seconds(1)
        self._study_s = min(self._study_s + STUDY_ALLOWANCE * spent, most) - study_s

    def _earn_probe(self, spent: float, plain: float) -> None:
        most = max(LARGEST_BILL * plain, self._draft_s)
        self._probe_s = min(self._probe_s + PROBE_ALLOWANCE * spent, most)

    def _usual(self, bill: float) -> float:
        """A bill as far as it is not a surprise: one proposal that was held up must not silence
        those to come for a few hundred passes.
        """
        return min(bill, LARGEST_SURPRISE * self._draft_s) if self._draft_s else bill

    def _settle(
        self, num_nodes: int, num_tokens: int, draft_s: float, num_sequences: int, num_asked: int
    ) -> None:
        """Book a step by the curve's prices, which are steadier than its own timing."""
        plain = self.curve.seconds(num_sequences)
        bill = min(draft_s, LARGEST_BILL * plain)
        spent = self.curve.seconds(num_nodes) + bill
        self._promised_s = 0.0
        if self._is_short(num_sequences):
            self._earn_probe(spent, plain)
            self._probe_s -= num_asked * self._usual(bill / max(num_asked, 1))
        balance = self._account_s + num_tokens * plain / num_sequences - spent
        if balance < OPENING_PASSES * plain:
            balance += ALLOWANCE * spent
        self._account_s = min(balance, CREDIT_PASSES * plain)

    def _settle_unverified(
        self,
        prospects: Sequence[Prospects],
        outcomes: Sequence[StepOutcome],
        costly: Sequence[CostlyStep],
        draft_s: float,
    ) -> None:
        """Book what verifying the best node would have brought while the account is short."""
        best, was_right, num_sequences = 0.0, False, len(outcomes)
        for one, outcome, step in zip(prospects, outcomes, costly, strict=True):
            if one.asked and one.proposal is not None and one.proposal.p_accept[1] > best:
                best, was_right = float(one.proposal.p_accept[1]), one.was_right(outcome, step)
        if best <= 0.0:
            return
        plain = self.curve.seconds(num_sequences)
        gain = was_right * plain / num_sequences - (self.curve.seconds(num_sequences + 1) - plain)
        if gain > 2.0 * draft_s:
            self._probe_s += draft_s  # such a probe is worth repeating at once
        # A debt that no evidence can repay soon would outlast the phase that made it.
        floor = min(self._account_s, -DEBT_PASSES * plain)
        self._account_s = max(self._account_s + gain, floor)

    def _set_silence(self, one: Prospects, was_right: bool, num_sequences: int) -> None:
        """Wait twice as long after each proposal that was wrong, once nothing earned is left."""
        if was_right or self._drafting_is_cheap(num_sequences) or one.earned > 0.0:
            one.silence = 0
        else:
            allowed_s = PROBE_ALLOWANCE * self.curve.seconds(num_sequences) / num_sequences
            longest = math.ceil(self._draft_s / allowed_s)
            one.earned, one.silence = 0.0, min(max(2 * one.silence, 1), longest)
        one.wait = one.silence

    @property
    def size_bytes(self) -> int:
        """Bytes of its buffers."""
        return self._choice.size_bytes
