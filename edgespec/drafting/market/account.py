"""What a drafter may lose whose every proposal costs something, such as a model that drafts.

The controller's account is for what verifying loses and for drafters that cost next to nothing. One
costly drafter would empty it and silence them all, so each has an account of its own: what its
proposals take is booked there, with what its nodes cost the pass that verifies them and what they
bring beyond the other drafters' own. While it holds too little for a proposal, this drafter alone
is not asked; a small part of the time is paid in, so it is tried again.

What a proposal brings depends on how sure the others are: beside a long match it brings nothing. So
gains are remembered by that, those of what follows others' drafts apart, and where they do not
cover the price it is asked more and more rarely. All amounts are in plain passes, which is what a
token is worth.

Once it has gained, no proposal may stake more than half of what a reply may risk, so chains become
shorter as that falls: what two long ones would lose where a text begins otherwise than the drafter
thinks pays for five or six.
"""

from __future__ import annotations

import math
from typing import NamedTuple

ALLOWANCE = 0.0025
"""Part of the time that it may lose."""
OPENING = 3.0
"""What it may lose at the start: enough to try."""
CREDIT = 16.0
"""Gains kept to be risked again: a few wrong chains in a row, each of most of a pass, are no sign
that it has come to lose.
"""
START = 4.0
"""What of them a reply may risk that has gained nothing itself."""
TRIAL = 1.0
"""The same two for a drafter that nobody asked for: a few proposals, and a percent or two of a
short reply.
"""
PROVEN = 2.5
"""What a reply may risk of a drafter whose trial has gained `START`: in a new text one wrong chain
costs up to two passes, and is no sign either. After a reply that lost it is a trial again, and half
of that after each further one.
"""
TRIES, LEAST_TRIES = 2.0, 1.1
"""Proposals that a reply may always risk of what was gained, and after several that lost: where one
takes more than `START`, the drafter would otherwise never be asked again.
"""
STAKE = 0.5
"""Part of the balance that a proposal may lose."""
_MANY_LOST = 2
LARGEST_BILL = 2.5
"""What a proposal counts as at most: compiling a kernel is no draft."""
_SURE = (0.3, 0.7)
"""Bounds of how sure the others are of the next token."""
_RATE, _RATE_DOWN = 0.1, 0.5
"""Prices follow slowly up, and quickly down."""
_LONGEST_SILENCE = 64
_ENOUGH, _PLENTY = 4, 16
"""Proposals after which something is known; and enough to be silent by."""


class CostlyStep(NamedTuple):
    """What costly drafters had to do with a step."""

    seconds: float = 0.0
    """Of their proposals, and of learning."""
    tokens: int = 0
    """Accepted beyond what would have been without them; less than none where their nodes took
    the others' place.
    """
    nodes: int = 0
    """Verified beyond those that would have been without them."""
    asked: bool = False
    """Whether one of them had a part in it."""
    others_right: bool = False
    """Whether one of the others had the next token."""


NOTHING_COSTLY = CostlyStep()


class CostlyAccount:
    """A costly drafter's balance, and when it is worth asking; the market counts the steps."""

    __slots__ = (
        "_bill",
        "_each",
        "_gains",
        "_kept",
        "_lost",
        "_mood",
        "_net",
        "_on_trial",
        "_opening",
        "_paid",
        "_silence",
        "_tries",
        "_until",
        "balance",
    )

    def __init__(self, *, on_trial: bool = False) -> None:
        self._on_trial, self._opening = on_trial, TRIAL if on_trial else OPENING
        self.balance = self._opening
        self._kept = 0.0
        """What this reply may not risk."""
        self._net, self._lost = 0.0, 0
        """What this reply came to; and how many in a row have lost."""
        self._bill = 0.0
        """A typical proposal's."""
        self._each = 0.0
        """What a node of a proposal takes, to draft it and to verify it."""
        self._gains = [0.0] * (len(_SURE) + 2)
        """What asking has come to lately, its price taken off, by how sure the others were; the
        last for what was to follow drafts of theirs.
        """
        self._tries = [0] * len(self._gains)
        self._silence = [0] * len(self._gains)
        self._until = [0] * len(self._gains)
        """Steps before which it is not asked."""
        self._paid = self._mood = 0
        """The step that was paid for last; how sure the others were when it was asked."""

    def begin(self) -> None:
        """A reply begins, which may risk a part of what earlier ones gained."""
        if self._net:
            self._lost = self._lost + 1 if self._net < 0.0 else 0
        self._net, tries = 0.0, TRIES if self._lost < _MANY_LOST else LEAST_TRIES
        gained = min(self.balance + self._kept, CREDIT)
        self.balance = min(gained, max(self._risk(gained), tries * self._bill))
        self._kept = gained - self.balance

    def _risk(self, gained: float) -> float:
        """What a reply may lose."""
        if not self._on_trial:
            return START
        if self._lost:
            return TRIAL * 0.5 ** (self._lost - 1)
        return PROVEN if gained >= START else TRIAL

    def may_want(self, step: int) -> bool:
        """Whether to ask in this step may be worth it, however sure the others are."""
        most = max(self._opening, TRIES * self._bill)
        if self.balance < most:
            self.balance = min(self.balance + ALLOWANCE * (step - self._paid), most)
        self._paid = step
        return self.balance > self._least and step >= min(self._until)

    def wants(self, step: int, sure: float, *, follows: bool = False) -> bool:
        """Whether to ask in this step, the others being `sure`, 0 to 1, of the next token; or for
        what follows drafts of theirs.
        """
        self._mood = -1 if follows else sum(sure > bound for bound in _SURE)
        return self.may_want(step) and step >= self._until[self._mood]

    @property
    def _least(self) -> float:
        """What the smallest proposal takes, as far as that is known."""
        return min(self._bill, self._each) if self._each else self._bill

    def room(self, most: int) -> int:
        """How many nodes it may propose now, at most so many, and one at least; in its first trial
        as many as it wants, to show what it can.
        """
        if not self._each or not self._kept:
            return most
        return max(1, min(most, int(STAKE * self.balance / self._each)))

    @property
    def worth(self) -> float:
        """What asking has come to lately where the others are as sure as they were said to be;
        without end while that is not known.
        """
        tries = self._tries[self._mood]
        if tries < _ENOUGH:
            return math.inf
        return self._gains[self._mood] / (1.0 - (1.0 - _RATE) ** tries)

    @property
    def next_step(self) -> int:
        """The step from which it would be asked if nobody else knew anything."""
        short = max(self._least - self.balance, 0.0)
        return max(self._until[0], self._paid + int(short / ALLOWANCE) + 2 * (short > 0.0))

    def settle(
        self, bill: float, gain: float, once: float = 0.0, *, nodes: int = 0, more: float = 0.0
    ) -> None:
        """Book a proposal that was asked for: what it took, and what it brought. `once` is what of
        the bill it would not have taken, had it been asked before: it is paid, and tells nothing.
        `nodes` is how many it had, and `more` what they cost the pass, which the gain has left.
        """
        bill, mood = min(bill, LARGEST_BILL), self._mood
        once = min(once, bill)
        self.balance, bill = self.balance - once, bill - once
        self._net -= once
        # The first may have read a whole prompt or compiled a kernel: no bill at once counts whole.
        self._bill += (_RATE_DOWN if bill < self._bill else _RATE) * (bill - self._bill)
        if nodes:
            each = (bill + more) / nodes
            self._each += (_RATE if self._each else 1.0) * (each - self._each)
        net = gain - bill
        self._tries[mood] += 1
        self.balance, self._net = min(self.balance + net, CREDIT), self._net + net
        self._gains[mood] += _RATE * (net - self._gains[mood])
        if self._gains[mood] > 0.0 or self._tries[mood] < _PLENTY:
            self._silence[mood] = 0
        else:
            self._silence[mood] = min(max(2 * self._silence[mood], 1), _LONGEST_SILENCE)
        self._until[mood] = self._paid + 1 + self._silence[mood]
