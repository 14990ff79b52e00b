"""How many nodes to verify: as many as the measured cost curve says pay back.

The rule is goodput: expected tokens per second, (1 + sum of path probabilities) / (T(1 + k) + draft
time), at its largest ("Optimizing Speculative Decoding for Serving Large Language Models Using
Goodput"; the threshold of "SpecDec++" and the tree size of "Hardware-Aware Parallel Prompt
Decoding" follow from it). k = 0 is plain decoding.

Speculation never costs: an account holds what speculation may lose, 0.75 % of the time spent. Steps
pay in and out of it by the curve's prices, and no step may risk more than it holds. Proposals that
are not verified are still compared with the tokens that came, which costs nothing but the drafting;
while the account is empty, what verifying their best node would have gained is booked, so a text
that turns predictable reopens it within a few tokens. While drafting costs more than verifying
drafts has gained lately, the controller asks for it less and less often until a proposal is right
again; and while the account is empty, it spends 0.5 % of the time on asking, right proposals not
counted. Drafters whose proposals cost something have accounts of their own
(`drafting/market/account.py`): what they took and brought is left out here, and they may be asked
while the others are not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.control.cost_curve import CostCurve
from edgespec.drafting.market.account import CostlyStep
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.system.jit import kernel

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
MARGIN = 1.01
"""A draft must promise this much more goodput than plain decoding."""
PROBE_ALLOWANCE = 0.005
"""Part of the time spent that drafts may take which cannot be verified now."""
STUDY_ALLOWANCE = 0.003
"""Part of the time spent that looking at logits may take in steps without drafts."""
CHEAP_DRAFT = 0.002
"""Drafting below this part of a plain pass is never skipped."""
LONGEST_SILENCE = 32
SAMPLE = 4
"""One in so many passes that nobody drafted for is looked at: nothing is decided by them."""
YARDSTICK_STEPS = 128
"""One plain pass after this many others keeps the price of plain decoding true."""
DRAFT_RATE = 0.1
GAIN_RATE = 0.1
LARGEST_SURPRISE = 4.0
"""What a proposal counts as at most, in typical ones, where it is not settled in the account."""
LARGEST_BILL = 2.5
"""Plain passes that a step's drafting is charged at most: compiling a kernel is no draft."""


@kernel
def best_prefix(
    parents: NDArray[np.int16],
    p_accept: NDArray[np.float32],
    path_p: NDArray[np.float64],
    seconds: NDArray[np.float64],
    draft_s: float,
    risk_s: float,
    limit: int,
) -> int:
    """How many nodes besides the root maximise goodput; seconds[k] is the price of k + 1 nodes.

    path_p is scratch: the probability that all nodes down to this one are accepted. A pass may take
    at most `risk_s` longer than a plain one.
    """
    path_p[0] = 1.0
    best = 0
    expected = 1.0
    best_goodput = MARGIN / (seconds[0] + draft_s)
    for num_nodes in range(1, limit + 1):
        if seconds[num_nodes] - seconds[0] > risk_s:
            break
        path_p[num_nodes] = path_p[parents[num_nodes]] * np.float64(p_accept[num_nodes])
        expected += path_p[num_nodes]
        goodput = expected / (seconds[num_nodes] + draft_s)
        if goodput > best_goodput:
            best_goodput = goodput
            best = num_nodes
    return best


class Controller:
    """Chooses how much of each proposal is verified and learns from what became of it.

    Per step: `draft_room` (0: do not draft), the drafter's proposal, `choose`, verification,
    `observe`. While there is to `wait`, and where nobody was asked: a plain pass, and `rest`.
    """

    def __init__(self, curve: CostCurve, max_nodes: int) -> None:
        self.curve = curve
        self.max_nodes = max_nodes
        """Most nodes of a pass, the root included."""
        self._path_p = np.zeros(256, np.float64)
        self._proposal: DraftTree | None = None
        self._draft_s = 0.0
        """A typical proposal's seconds."""
        self._gain_s = 0.0
        """What asking for a proposal has gained lately, its own price left out."""
        self._silence = 0
        self.wait = 0
        """Steps to come in which nobody is to be asked."""
        self.asked = False
        """Whether a proposal was asked for in this step."""
        self._study_s = 0.0
        self._probe_s = 0.0
        self._account_s = OPENING_PASSES * curve.seconds(1)
        self._since_plain = 0
        self._plain_passes = 0

    def begin(self) -> None:
        """A reply begins: it risks little of what earlier ones gained."""
        self._account_s = min(self._account_s, START_PASSES * self.curve.seconds(1))

    def draft_room(
        self, limit: int | None = None, *, free: bool = True, costly: bool = False
    ) -> int:
        """How many nodes besides the root drafters may propose now; 0 means that asking does not
        pay. Afterwards `asked` tells whether the free ones are to be.

        `limit` is the request's cap: nodes per pass or tokens left to write, whichever is smaller.
        `free` and `costly` say whether there are drafters of the kind, and of the costly ones
        whether their accounts bear asking them.
        """
        room = min(self.max_nodes, self.curve.max_nodes, len(self._path_p)) - 1
        if limit is not None:
            room = min(room, limit)
        room, self.asked = max(room, 0), False
        if not free or (costly and self.wait):
            return room if costly else 0
        if self._is_short and self._probe_s < self._draft_s:
            self.wait = SAMPLE  # this step and those before something is earned
            return room if costly else 0
        self.asked = room > 0
        return room

    @property
    def _is_short(self) -> bool:
        """Whether the account cannot bear one more proposal that nothing comes of."""
        return self._account_s <= 0.0 or (
            self._account_s < self._draft_s and not self._drafting_is_cheap
        )

    @property
    def _drafting_is_cheap(self) -> bool:
        return self._draft_s <= CHEAP_DRAFT * self.curve.seconds(1)

    def choose(
        self,
        tree: DraftTree,
        draft_s: float = 0.0,
        limit: int | None = None,
        *,
        costly_s: float = 0.0,
        risk_s: float = 0.0,
    ) -> int:
        """How many of the tree's nodes besides the root to verify: `tree.take(1 + k)` goes to the
        target.

        Nodes come surest first, with calibrated `p_accept`; `draft_s` is what the proposal took, in
        seconds, of it `costly_s` costly drafters, whose accounts bear a pass that is `risk_s`
        longer.
        """
        num_drafted = len(tree) - 1
        self._proposal = tree if num_drafted else None
        if self.asked and draft_s > 0.0:
            # Down at once, up slowly: the first call may have compiled a kernel.
            bill = self._usual(
                min(max(draft_s - costly_s, 0.0), LARGEST_BILL * self.curve.seconds(1))
            )
            self._draft_s += (DRAFT_RATE if bill > self._draft_s else 1.0) * (bill - self._draft_s)
        room = min(num_drafted, self.max_nodes - 1, self.curve.max_nodes - 1, len(self._path_p) - 1)
        if limit is not None:
            room = min(room, limit)
        risk_s = max(self._account_s, risk_s)
        if room < 1 or risk_s <= 0.0 or self._since_plain >= YARDSTICK_STEPS:
            return 0
        return int(
            best_prefix(
                tree.parents,
                tree.p_accept,
                self._path_p,
                self.curve.table,
                draft_s,
                risk_s,
                room,
            )
        )

    def observe(
        self,
        outcome: StepOutcome,
        seconds: float,
        draft_s: float = 0.0,
        costly: CostlyStep | None = None,
    ) -> None:
        """Learn from a step: `outcome.tree` took `seconds` to verify and `draft_s` to draft.

        `draft_s` is all that drafters cost in this step, with feeding them the new tokens; `costly`
        is the costly ones' part in it. `outcome.new_tokens` must be filled.
        """
        num_nodes, costly = len(outcome.tree), costly or CostlyStep()
        self.curve.update(num_nodes, seconds)
        self._since_plain = self._since_plain + 1 if num_nodes > 1 else 0
        num_nodes, num_tokens = num_nodes - costly.nodes, len(outcome.path) - costly.tokens
        draft_s = max(draft_s - costly.seconds, 0.0)
        if costly.asked and not self.asked:  # the costly ones alone were
            self.wait = max(self.wait - 1, 0)
            self._proposal = None
            self._settle(num_nodes, num_tokens, 0.0)
            return
        was_right = False
        was_short = self._is_short
        if self._proposal is not None:
            was_right = bool(self._proposal.tokens[1] == outcome.new_tokens[0])
            if costly.asked:
                was_right = costly.others_right
            self._proposal = None
            if was_short and num_nodes == 1:
                self._settle_unverified(was_right, draft_s)
        self._settle(num_nodes, num_tokens, draft_s)
        if self.asked and not was_short:
            gain_s = num_tokens * self.curve.seconds(1) - self.curve.seconds(num_nodes)
            self._gain_s += GAIN_RATE * (gain_s - self._gain_s)
            self._set_silence(was_right)
        self.asked = False

    @property
    def may_study(self) -> bool:
        """Whether drafters that learn from logits may look at those of a step without drafts."""
        return self._study_s >= 0.0

    def rest(self, seconds: float, study_s: float = 0.0) -> None:
        """Learn from a pass that nobody drafted for, which must cost next to nothing.

        It took `seconds`, and drafters `study_s` to look at its logits.
        """
        if self.wait > 0:
            self.wait -= 1
        self._study_s -= study_s
        self._since_plain = 0
        self._plain_passes += 1
        if self._plain_passes % SAMPLE == 0:
            self.curve.update(1, seconds)
            earned = SAMPLE * self.curve.seconds(1)
            self._study_s = min(self._study_s + STUDY_ALLOWANCE * earned, earned)
            if self._is_short:
                self._probe_s = min(self._probe_s + PROBE_ALLOWANCE * earned, self._most_probe_s)
            if self._account_s < OPENING_PASSES * self.curve.seconds(1):
                self._account_s += ALLOWANCE * earned

    def _usual(self, bill: float) -> float:
        """A bill as far as it is not a surprise: one proposal that was held up must not silence
        those to come for a few hundred passes.
        """
        return min(bill, LARGEST_SURPRISE * self._draft_s) if self._draft_s else bill

    @property
    def _most_probe_s(self) -> float:
        """What is saved up for drafts that cannot be verified."""
        return max(LARGEST_BILL * self.curve.seconds(1), self._draft_s)

    def _settle(self, num_nodes: int, num_tokens: int, draft_s: float) -> None:
        """Book a step by the curve's prices, which are steadier than its own timing."""
        plain = self.curve.seconds(1)
        bill = min(draft_s, LARGEST_BILL * plain)
        spent = self.curve.seconds(num_nodes) + bill
        if self._is_short:
            earned = self._probe_s + PROBE_ALLOWANCE * spent
            self._probe_s = min(earned, self._most_probe_s) - self._usual(bill)
        balance = self._account_s + num_tokens * plain - spent
        if balance < OPENING_PASSES * plain:
            balance += ALLOWANCE * spent
        self._account_s = min(balance, CREDIT_PASSES * plain)

    def _settle_unverified(self, was_right: bool, draft_s: float) -> None:
        """Book what verifying the best node would have brought while the account is short."""
        plain, two = self.curve.seconds(1), self.curve.seconds(2)
        gain = 2.0 * plain - two if was_right else plain - two
        if gain > 2.0 * draft_s:
            self._probe_s += draft_s  # such a probe is worth repeating at once
        # A debt that no evidence can repay soon would outlast the phase that made it.
        floor = min(self._account_s, -DEBT_PASSES * plain)
        self._account_s = max(self._account_s + gain, floor)

    def _set_silence(self, was_right: bool) -> None:
        """Wait twice as long after each proposal that was wrong, unless drafting pays."""
        if was_right or self._drafting_is_cheap or self._draft_s <= self._gain_s:
            self._silence = 0
        else:
            self._silence = min(max(2 * self._silence, 1), LONGEST_SILENCE)
        self.wait = self._silence

    @property
    def size_bytes(self) -> int:
        """Bytes of its buffers."""
        return self._path_p.nbytes
