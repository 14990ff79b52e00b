"""A costly drafter's own account: it loses little where it is wrong, and is asked where it pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.prospects import Prospects
from edgespec.drafting.base import Drafter
from edgespec.drafting.market.account import (
    ALLOWANCE,
    CREDIT,
    OPENING,
    PROVEN,
    START,
    TRIAL,
    CostlyAccount,
)
from edgespec.drafting.market.market import Market
from edgespec.drafting.tree import DraftTree, StepOutcome


def play(account: CostlyAccount, steps: int, chance: float, bill: float, seed: int = 0) -> float:
    """Gains less bills over many steps, each right proposal bringing a pass."""
    rng, total = np.random.default_rng(seed), 0.0
    for step in range(steps):
        if account.wants(step, 0.0):
            gain = float(rng.random() < chance)
            account.settle(bill, gain)
            total += gain - bill
    return total


@pytest.mark.parametrize("seed", range(4))
def test_it_loses_no_more_than_it_is_allowed(seed: int) -> None:
    lost = -play(CostlyAccount(), 20_000, 0.0, 0.3, seed)
    assert 0.5 * ALLOWANCE * 20_000 < lost < OPENING + ALLOWANCE * 20_000 + 1.0


@pytest.mark.parametrize("seed", range(4))
def test_it_is_asked_where_it_pays(seed: int) -> None:
    assert play(CostlyAccount(), 4000, 0.7, 0.3, seed) > 0.8 * 4000 * 0.4


def test_a_few_wrong_chains_do_not_silence_one_that_pays() -> None:
    """Each takes most of a pass; what it brought before is risked first."""
    account, asked = CostlyAccount(), 0
    for step in range(100):
        if account.wants(step, 0.0):
            asked += 1
            account.settle(0.8, 0.0 if step % 20 >= 13 else 2.0)
    assert asked > 75


def replies(account: CostlyAccount, pays: list[bool], bill: float) -> list[int]:
    """How often it was asked in each of these replies of 60 steps."""
    asked, step = [], 0
    for right in pays:
        account.begin()
        asked.append(0)
        for _ in range(60):
            step += 1
            if account.wants(step, 0.0):
                asked[-1] += 1
                account.settle(bill, 2.0 if right else 0.0)
    return asked


def test_after_a_reply_that_it_did_not_suit_it_may_prove_itself_in_the_next() -> None:
    """On trial too, once it has gained enough; and the one reply costs it little."""
    asked = replies(CostlyAccount(on_trial=True), [True, False, True, False, False, True], 0.5)
    assert asked[0] > 50
    assert asked[2] > 50
    assert asked[5] > 50
    assert max(asked[1], asked[3], asked[4]) <= (PROVEN + 0.2) / 0.5 + 1


def test_after_each_reply_that_it_lost_the_next_risks_less() -> None:
    """Hostile texts follow each other: less and less of a short reply, until one gains again."""
    pays = [True, True, *[False] * 6, True, False]
    asked = replies(CostlyAccount(on_trial=True), pays, 0.25)
    assert PROVEN / 0.25 - 1 <= asked[2] <= (PROVEN + 0.2) / 0.25
    assert max(asked[3:5]) <= (TRIAL + 0.2) / 0.25
    assert set(asked[5:8]) <= {1, 2}
    assert asked[8] > 50
    assert asked[9] >= PROVEN / 0.25 - 1


def play_chains(account: CostlyAccount, rights: list[int], each: float) -> list[int]:
    """Sizes of the proposals of a reply in whose steps so many tokens are right; each node drafted
    and verified takes `each`, half of it the pass.
    """
    account.begin()
    sizes = []
    for step, right in enumerate(rights, account._paid + 1):
        if account.wants(step, 0.0):
            nodes = account.room(8)
            more = 0.5 * each * nodes
            account.settle(more, min(right, nodes) - more, nodes=nodes, more=more)
            sizes.append(nodes)
    return sizes


def test_a_text_that_begins_otherwise_than_a_good_drafter_thinks_does_not_silence_it() -> None:
    """Its chains become shorter while they are wrong, so what it may lose pays for more of them."""
    account = CostlyAccount(on_trial=True)
    assert set(play_chains(account, [4] * 20, 0.15)) == {8}
    sizes = play_chains(account, [*[0] * 4, *[6] * 30], 0.15)
    assert sizes[:3] == sorted(sizes[:3], reverse=True) and sizes[0] > sizes[3]
    assert len(sizes) == 34 and sizes[-1] == 8


def test_shorter_chains_lose_no_more_where_nothing_is_right() -> None:
    account = CostlyAccount(on_trial=True)
    play_chains(account, [4] * 20, 0.15)
    sizes = play_chains(account, [0] * 60, 0.15)
    assert len(sizes) > 5
    assert CREDIT - account.balance - account._kept <= PROVEN + 60 * ALLOWANCE


def test_the_first_trial_is_of_whole_chains() -> None:
    account = CostlyAccount(on_trial=True)
    assert play_chains(account, [0, 0], 0.1)[0] == 8
    assert account.room(8) == 8


def test_one_that_never_pays_is_given_up() -> None:
    asked = replies(CostlyAccount(on_trial=True), [True] + [False] * 20, 0.5)
    assert sum(asked[1:]) <= (CREDIT + 21 * 60 * ALLOWANCE) / 0.5 + 1
    assert max(asked[-8:]) <= 1


def test_proposals_that_take_more_than_a_trial_are_no_end_of_it() -> None:
    """The balance of a new reply holds more than a proposal takes."""
    asked = replies(CostlyAccount(on_trial=True), [True] * 4, 1.2)
    assert asked[0] > 50
    assert min(asked) > 50


def test_it_is_asked_again_when_it_comes_to_pay() -> None:
    account = CostlyAccount()
    play(account, 2000, 0.0, 0.3)
    account._paid, account._until = 0, [0, 0, 0]
    assert play(account, 4000, 0.9, 0.3) > 0.5 * 4000 * 0.6


def test_beside_those_who_are_sure_it_is_asked_less() -> None:
    """It brings nothing where the others are sure, and is asked there seldom; else always."""
    account, asked = CostlyAccount(), [0, 0]
    for step in range(4000):
        sure = 0.9 if step % 2 else 0.1
        if account.wants(step, sure):
            asked[step % 2] += 1
            account.settle(0.3, 0.0 if step % 2 else 1.0)
    assert asked[0] > 1900
    assert asked[1] < 100


def test_the_step_it_is_asked_next_is_the_one_it_wants() -> None:
    account = CostlyAccount()
    while account.wants(0, 0.0):
        account.settle(0.4, 0.0)
        account._until = [0, 0, 0]
    step = account.next_step
    assert not account.wants(step - 4, 0.0)
    assert account.wants(step, 0.0)


class Free(Drafter):
    """Is always right, at no cost."""

    name, size_bytes = "free", 0
    token = 1

    def reset(self, tokens: object) -> None: ...

    def extend(self, tokens: object) -> None: ...

    def propose(self, max_nodes: int) -> DraftTree:
        return DraftTree.chain(1, [self.token], [0.5], 1)


class Costly(Free):
    """Is always wrong, and takes a third of a pass."""

    name, costly, token = "costly", True, 2

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock
        self.asked = 0

    def propose(self, max_nodes: int) -> DraftTree:
        self.clock[0] += 0.3
        self.asked += 1
        return super().propose(max_nodes)


def test_a_costly_one_that_fails_silences_nobody_else() -> None:
    """Free drafts go on at every step; the whole loses next to nothing."""
    clock = [0.0]
    costly = Costly(clock)
    market = Market([Free(), costly], clock=lambda: clock[0])
    curve = {1: 1.0, 2: 1.05, 4: 1.1}
    controller, prospects = Controller(CostCurve(curve), 4), Prospects()
    prices = np.array([1.0, 1.05, 1.07, 1.1])
    market._prices, market.token_s = prices, 1.0
    market.reset([1])
    steps, passes = 2000, 0.0
    for _ in range(steps):
        start = clock[0]
        costly_now = market.step >= market.costly_at
        room = controller.draft_room(prospects, 3, costly=costly_now)
        tree = DraftTree.root(1)
        if room:
            tree = market.propose(room, free=prospects.asked)
            (count,) = controller.choose(
                [prospects],
                [tree],
                clock[0] - start,
                costly_s=market.costly_s,
                risk_s=market.costly_risk_s,
            )
            tree = tree.take(1 + count)
        path = [0] + [node for node in range(1, len(tree)) if tree.tokens[node] == 1][:1]
        outcome = StepOutcome(tree, path, 1, [1] * len(path))
        passes += (clock[0] - start + prices[len(tree) - 1]) / len(path)
        market.observe(outcome)
        if prospects.asked or market.costly_step.asked:
            seconds = float(prices[len(tree) - 1])
            controller.observe(
                [prospects],
                [outcome],
                seconds,
                clock[0] - start,
                costly=[market.costly_step],
            )
        else:
            controller.rest(1.0)
        market.extend(outcome.new_tokens)
        market.take_seconds()
    assert passes / steps < 0.55  # two tokens of 1.05 a step, and little else
    assert costly.asked < 0.05 * steps


class Often(Costly):
    """Is right as often as it is told, and takes part of a pass."""

    def __init__(self, name: str, clock: list[float], chance: float, takes: float) -> None:
        super().__init__(clock)
        self.name, self.chance, self.takes = name, chance, takes
        self.rng = np.random.default_rng(5)

    def propose(self, max_nodes: int) -> DraftTree:
        self.clock[0] += self.takes
        self.asked += 1
        token = 1 if self.rng.random() < self.chance else 2
        return DraftTree.chain(1, [token], [0.5], 1)


@pytest.mark.parametrize("first", [True, False])
def test_of_two_costly_ones_the_better_is_asked(first: bool) -> None:
    """One a step, and the other now and then, in case it has become better."""
    clock = [0.0]
    good, poor = Often("good", clock, 0.9, 0.2), Often("poor", clock, 0.7, 0.4)
    market = Market([good, poor] if first else [poor, good], clock=lambda: clock[0])
    market._prices, market.token_s = np.array([1.0, 1.02, 1.04, 1.06]), 1.0
    market.reset([1])
    for _ in range(1000):
        before = good.asked + poor.asked
        tree = market.propose(3, free=False)
        assert good.asked + poor.asked == before + 1
        path = [0, 1] if tree.tokens[1] == 1 else [0]
        market.observe(StepOutcome(tree, path, 1, [1] * len(path)))
        market.extend([1] * len(path))
        market.take_seconds()
    assert good.asked > 940
    assert poor.asked > 12
    good.chance = 0.1
    decode(market, 400)
    assert poor.asked > 300


class Reading(Often):
    """Has to read the text's last tokens, which takes a while when it was not asked for long."""

    unread = 0

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super().extend(tokens)
        self.unread += len(tokens)

    def propose(self, max_nodes: int) -> DraftTree:
        self.late_s, self.unread = 0.01 * min(max(self.unread - 8, 0), 64), 0
        self.clock[0] += self.late_s
        return super().propose(max_nodes)


def test_what_one_reads_for_not_having_been_asked_does_not_keep_it_from_being_asked() -> None:
    """It becomes the better one while the other is asked, and every look at it takes half a pass
    more than proposals in a row would.
    """
    clock = [0.0]
    other, reading = Often("other", clock, 0.6, 0.2), Reading("reading", clock, 0.1, 0.1)
    market = Market([other, reading], clock=lambda: clock[0])
    market._prices, market.token_s = np.array([1.0, 1.02, 1.04, 1.06]), 1.0
    market.reset([1])
    decode(market, 300)
    assert reading.asked < 30
    reading.chance, asked = 0.9, reading.asked
    decode(market, 600)
    assert reading.asked - asked > 300


def decode(market: Market, steps: int) -> None:
    """Steps of a text of ones whose costly drafts alone are verified."""
    for _ in range(steps):
        tree = market.propose(3, free=False)
        path = [0, 1] if len(tree) > 1 and tree.tokens[1] == 1 else [0]
        market.observe(StepOutcome(tree, path, 1, [1] * len(path)))
        market.extend([1] * len(path))
        market.take_seconds()


def test_what_is_paid_once_is_paid_and_tells_nothing_of_the_next() -> None:
    account, told_all = CostlyAccount(), CostlyAccount()
    for step in range(1, 9):
        for one in (account, told_all):
            one.wants(step, 0.0)
        account.settle(0.9, 0.5, 0.6)
        told_all.settle(0.9, 0.5)
    assert account.balance == pytest.approx(told_all.balance)
    assert account.worth == pytest.approx(0.2)
    assert told_all.worth == pytest.approx(-0.4)


def test_a_first_proposal_that_read_a_prompt_does_not_silence_those_to_come() -> None:
    account = CostlyAccount()
    assert account.wants(1, 0.0)
    account.settle(9.0, 1.0)
    asked = 0
    for step in range(2, 42):
        if account.wants(step, 0.0):
            asked += 1
            account.settle(0.4, 1.0)
    assert asked >= 38


def test_one_that_always_costs_more_than_it_brings_is_given_up_after_a_few() -> None:
    account, lost = CostlyAccount(), 0.0
    for step in range(1, 401):
        if account.wants(step, 0.0):
            account.settle(2.0, 0.5)
            lost += 1.5
    assert lost <= OPENING + 3.0 + 400 * ALLOWANCE


def test_a_reply_does_not_risk_what_earlier_ones_gained() -> None:
    account = CostlyAccount()
    play(account, 200, 1.0, 0.3)
    assert account.balance > 10.0
    account.begin()
    assert -play(account, 100, 0.0, 0.5) <= START + 0.5 + 100 * ALLOWANCE
