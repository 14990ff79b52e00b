"""The controller's books as compiled rules: what speculation may lose, and when to ask for drafts.

Kernels, because on small models a step is decided between two passes of a fifth of a millisecond;
the decode loop calls them from Python, and several steps at a time call them from one kernel
(`engine/burst.py`). The controller's numbers are f64 [NUM_NUMBERS], a sequence's [NUM_OF_SEQUENCE];
`table` are the cost curve's seconds by number of nodes less one.

"plain" is the pass over a root for each of the sequences, and a token is worth their share of it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import kernel

ALLOWANCE = 0.0075
"""Part of the time spent that speculation may lose when drafts are verified."""
OPENING_PASSES = 1.5
"""What it may lose at the start, in plain passes: enough to try."""
CREDIT_PASSES = 16.0
"""Gains kept to be risked again, in plain passes."""
DEBT_PASSES = 3.0
"""Evidence of proposals that were not verified deepens a debt to this at most."""
PROBE_ALLOWANCE = 0.005
"""Part of the time spent that drafts may always take, even those that cannot be verified now."""
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
MOST_EARNED = 4.0
"""What a sequence keeps of its gains to ask on with, in plain passes ..."""
EARNED_BEFORE = 0.5
"""... and what a reply has of them that has gained nothing itself."""

ACCOUNT_S, PROBE_S, PROMISED_S, STUDY_S, DRAFT_S, SINCE_PLAIN, PLAIN_PASSES, NUM_NUMBERS = range(8)
"""What verifying may lose; what may be spent on proposals that cannot be verified now, and what of
it was promised to proposals of this step; what looking at logits may take; a typical proposal's
seconds, for one sequence; steps since the last plain pass; passes that nobody drafted for.
"""
EARNED, SILENCE, WAIT, NUM_OF_SEQUENCE = range(4)
"""What asking has gained and not yet spent on being wrong, in plain passes; for how many steps it
was silent after the last proposal that was wrong; steps to come in which it is not asked.
"""

Numbers = NDArray[np.float64]


@kernel("float64[:]", "float64", result="bool")
def is_cheap(own: Numbers, token_s: float) -> bool:
    """Whether asking in every step takes no more than may always be spent on it."""
    return bool(own[DRAFT_S] <= PROBE_ALLOWANCE * token_s)


@kernel("float64[:]", "float64", result="bool")
def is_short(own: Numbers, token_s: float) -> bool:
    """Whether the account cannot bear one more proposal that nothing comes of."""
    account_s = own[ACCOUNT_S]
    return account_s <= 0.0 or (account_s < own[DRAFT_S] and not is_cheap(own, token_s))


@kernel("float64[:]", "float64[:]", "float64", result="bool")
def may_ask(own: Numbers, sequence: Numbers, token_s: float) -> bool:
    """Whether the drafters of a sequence that does not wait are to be asked."""
    if is_short(own, token_s):
        if own[PROBE_S] - own[PROMISED_S] < own[DRAFT_S]:
            sequence[WAIT] = SAMPLE - 1  # and not before something is earned
            return False
        own[PROMISED_S] += own[DRAFT_S]
    return True


@kernel("float64[:]", "float64", result="float64")
def usual(own: Numbers, bill: float) -> float:
    """A bill as far as it is not a surprise: one proposal that was held up must not silence those
    to come for a few hundred passes.
    """
    return min(bill, LARGEST_SURPRISE * own[DRAFT_S]) if own[DRAFT_S] > 0.0 else bill


@kernel("float64[:]", "float64", "float64")
def expect_bill(own: Numbers, bill: float, plain: float) -> None:
    """Learn what a proposal takes: down at once, up slowly, as the first may compile a kernel."""
    bill = usual(own, min(bill, LARGEST_BILL * plain))
    own[DRAFT_S] += (DRAFT_RATE if bill > own[DRAFT_S] else 1.0) * (bill - own[DRAFT_S])


@kernel("float64[:]", result="bool")
def may_verify(own: Numbers) -> bool:
    """Whether it is not the turn of a plain pass."""
    return bool(own[SINCE_PLAIN] < YARDSTICK_STEPS)


@kernel("float64[:]", "float64[:]", "float64", "float64")
def earn_study(own: Numbers, table: Numbers, spent: float, study_s: float) -> None:
    """Put part of the time spent aside for looking at logits, and pay for a look."""
    own[STUDY_S] = min(own[STUDY_S] + STUDY_ALLOWANCE * spent, SAMPLE * table[0]) - study_s


@kernel("float64[:]", "float64", "float64")
def earn_probe(own: Numbers, spent: float, plain: float) -> None:
    """Put part of the time spent aside for proposals that cannot be verified."""
    most = max(LARGEST_BILL * plain, own[DRAFT_S])
    own[PROBE_S] = min(own[PROBE_S] + PROBE_ALLOWANCE * spent, most)


@kernel("float64[:]", "float64[:]", "int64", "int64", "int64", "float64", "int64")
def settle(
    own: Numbers,
    table: Numbers,
    num_sequences: int,
    num_nodes: int,
    num_tokens: int,
    draft_s: float,
    num_asked: int,
) -> None:
    """Book a step by the curve's prices, which are steadier than its own timing."""
    plain = table[num_sequences - 1]
    token_s = plain / num_sequences
    bill = min(draft_s, LARGEST_BILL * plain)
    spent = table[num_nodes - 1] + bill
    own[PROMISED_S] = 0.0
    if is_short(own, token_s):
        earn_probe(own, spent, plain)
        own[PROBE_S] -= num_asked * usual(own, bill / max(num_asked, 1))
    balance = own[ACCOUNT_S] + num_tokens * token_s - spent
    if balance < OPENING_PASSES * plain:
        balance += ALLOWANCE * spent
    own[ACCOUNT_S] = min(balance, CREDIT_PASSES * plain)


@kernel("float64[:]", "float64[:]", "int64", "bool", "float64")
def settle_unverified(
    own: Numbers, table: Numbers, num_sequences: int, was_right: bool, draft_s: float
) -> None:
    """Book what verifying the surest node of all proposals would have brought."""
    plain = table[num_sequences - 1]
    more = table[min(num_sequences, len(table) - 1)] - plain
    gain = (plain / num_sequences if was_right else 0.0) - more
    if gain > 2.0 * draft_s:
        own[PROBE_S] += draft_s  # such a probe is worth repeating at once
    # A debt that no evidence can repay soon would outlast the phase that made it.
    floor = min(own[ACCOUNT_S], -DEBT_PASSES * plain)
    own[ACCOUNT_S] = max(own[ACCOUNT_S] + gain, floor)


@kernel("float64[:]", "float64[:]", "float64", "float64", "bool")
def judge(own: Numbers, sequence: Numbers, token_s: float, gain_s: float, was_right: bool) -> None:
    """Book what asking for a sequence's drafts has gained, its own price not taken off yet; once
    nothing is left of what it earned, wait twice as long after each proposal that was wrong.
    """
    earned = sequence[EARNED] + (gain_s - own[DRAFT_S]) / token_s
    sequence[EARNED] = min(earned, MOST_EARNED)
    if was_right or sequence[EARNED] > 0.0 or is_cheap(own, token_s):
        sequence[SILENCE] = 0.0
    else:
        longest = math.ceil(own[DRAFT_S] / (PROBE_ALLOWANCE * token_s))
        sequence[EARNED] = 0.0
        sequence[SILENCE] = min(max(2.0 * sequence[SILENCE], 1.0), longest)
    sequence[WAIT] = sequence[SILENCE]


@kernel("float64[:]", "float64", result="bool")
def rest(own: Numbers, study_s: float) -> bool:
    """Book a pass that nobody drafted for; whether it is one of those that are looked at."""
    own[STUDY_S] -= study_s
    own[SINCE_PLAIN] = 0.0
    own[PLAIN_PASSES] += 1.0
    return bool(own[PLAIN_PASSES] % SAMPLE == 0.0)


@kernel("float64[:]", "float64[:]", "int64")
def earn(own: Numbers, table: Numbers, num_sequences: int) -> None:
    """What the passes bring that `rest` did not look at, and the one that it did."""
    plain = table[num_sequences - 1]
    earned = SAMPLE * plain
    earn_study(own, table, earned, 0.0)
    if is_short(own, plain / num_sequences):
        earn_probe(own, earned, plain)
    if own[ACCOUNT_S] < OPENING_PASSES * plain:
        own[ACCOUNT_S] += ALLOWANCE * earned
