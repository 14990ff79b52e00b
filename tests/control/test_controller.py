from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.control import accounts
from edgespec.control.controller import START_PASSES, Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.node_choice import NodeChoice
from edgespec.control.prospects import Prospects
from edgespec.drafting.base import Drafter
from edgespec.drafting.market.market import Market
from edgespec.drafting.tree import DraftTree, StepOutcome

FLAT = {1: 1.0, 4: 1.1, 8: 1.5, 16: 2.6}
STEEP = {1: 1.0, 2: 1.8, 4: 2.8, 8: 5.0, 16: 10.0}
RIGHT, WRONG = 7, 8


def chain(num_nodes: int, p_accept: float = 0.9) -> DraftTree:
    return DraftTree.chain(1, [RIGHT] * num_nodes, [p_accept] * num_nodes, 1)


class Scripted(Drafter):
    """Says the same after every text."""

    name = "scripted"
    size_bytes = 0

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None: ...

    def extend(self, tokens: Sequence[int]) -> None: ...

    def propose(self, max_nodes: int) -> DraftTree:
        return self.tree.take(max_nodes + 1)


def choice(controller: Controller, tree: DraftTree, draft_s: float = 0.0) -> int:
    """How many of one sequence's nodes are verified."""
    (count,) = controller.choose([Prospects()], [tree], draft_s)
    return count


class Simulation:
    """A decode loop without a model: the clock is the true curve, hits are drawn."""

    def __init__(
        self,
        curve: dict[int, float],
        true_curve: dict[int, float] | None = None,
        draft_s: float = 0.0,
        p_accept: float = 0.9,
    ) -> None:
        self.true = CostCurve(true_curve or curve)
        self.controller, self.prospects = Controller(CostCurve(curve), 16), Prospects()
        self.draft_s = draft_s
        self.market = Market([Scripted(chain(15, p_accept))], clock=lambda: self.clock)
        self.market.reset([1])
        self.clock = 0.0
        self.tokens = 0
        self.verified: list[int] = []
        self.rng = np.random.default_rng(5)

    def step(self, hit_rate: float) -> None:
        draft_s = self.draft_s
        tree = DraftTree.root(1)
        asked = self.controller.draft_room(self.prospects, 15) > 0
        if asked:
            tree = self.market.propose(15)
        else:
            draft_s = min(0.1 * self.draft_s, 0.002)  # drafters are fed all the same
        (count,) = self.controller.choose([self.prospects], [tree], draft_s)
        tree = tree.take(1 + count)
        hits = 0
        while self.rng.random() < hit_rate:
            hits += 1
        accepted = min(hits, len(tree) - 1)
        new = [RIGHT] * accepted + [RIGHT if hits > accepted else WRONG]
        outcome = StepOutcome(tree, list(range(accepted + 1)), new[-1], new)
        seconds = self.true.seconds(len(tree))
        self.market.observe(outcome)
        if asked:
            self.controller.observe([self.prospects], [outcome], seconds, draft_s)
        else:
            self.controller.rest(seconds)
        self.clock += seconds + draft_s
        self.tokens += accepted + 1
        self.verified.append(len(tree) - 1)

    @property
    def speedup(self) -> float:
        return self.tokens * self.true.seconds(1) / self.clock


@settings(max_examples=100, deadline=None)
@given(
    paths=st.lists(st.floats(0, 1), max_size=15),
    slope=st.floats(0, 1),
    draft_s=st.sampled_from([0.0, 0.1]),
)
def test_the_chosen_prefix_maximises_goodput(
    paths: list[float], slope: float, draft_s: float
) -> None:
    path_p = np.array([1.0, *sorted(paths, reverse=True)], np.float32)
    seconds = 1.0 + slope * np.arange(len(path_p))
    star = np.zeros(len(path_p), np.int16)
    goodput = np.cumsum(path_p.astype(np.float64)) / (seconds + draft_s)
    tree = DraftTree(np.arange(len(path_p), dtype=np.int32), star, path_p, np.zeros(1, np.uint8))
    (best,) = NodeChoice().counts([tree], seconds, draft_s, np.inf, len(path_p) - 1)
    reached = goodput[best] * (1.01 if best == 0 else 1.0)
    assert reached >= goodput.max() * (1 - 1e-9)


def test_hopeless_drafts_are_not_verified() -> None:
    assert choice(Controller(CostCurve(FLAT), 16), chain(15, 0.01)) == 0


def test_certain_drafts_on_a_flat_curve_are_verified_whole() -> None:
    assert choice(Controller(CostCurve({1: 1.0, 16: 1.1}), 16), chain(15, 0.99)) == 15


def test_a_steeper_curve_takes_fewer_nodes() -> None:
    counts = [choice(Controller(CostCurve(curve), 16), chain(15, 0.8)) for curve in (FLAT, STEEP)]
    assert counts[0] > counts[1] >= 0


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_requests_cap_holds(limit: int) -> None:
    controller = Controller(CostCurve({1: 1.0, 16: 1.0}), 16)
    assert controller.draft_room(Prospects(), limit) == limit


def test_the_plans_cap_holds() -> None:
    controller = Controller(CostCurve({1: 1.0, 16: 1.0}), 5)
    assert controller.draft_room(Prospects(), 15) == 4
    assert choice(controller, chain(15, 0.99)) == 4


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("hit_rate", [0.0, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("p_accept", [0.3, 0.9])
@pytest.mark.parametrize("draft_s", [0.0, 0.001, 0.05, 0.5])
def test_speculation_never_costs(
    curve: dict[int, float], hit_rate: float, p_accept: float, draft_s: float
) -> None:
    simulation = Simulation(curve, p_accept=p_accept, draft_s=draft_s)
    for _ in range(400):
        simulation.step(hit_rate)
    assert simulation.speedup > 0.98


@pytest.mark.parametrize("hit_rate", [0.0, 0.3, 0.6])
def test_speculation_never_costs_when_the_curve_was_measured_too_low(hit_rate: float) -> None:
    true = {size: seconds * (1.5 if size > 1 else 1.0) for size, seconds in FLAT.items()}
    simulation = Simulation(FLAT, true)
    for _ in range(1500):
        simulation.step(hit_rate)
    assert simulation.speedup > 0.98


@pytest.mark.parametrize("period", [1, 3, 10, 50])
def test_alternating_phases_never_cost(period: int) -> None:
    simulation = Simulation(STEEP)
    for step in range(600):
        simulation.step(0.8 if step // period % 2 else 0.0)
    assert simulation.speedup > 0.98


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("draft_s", [0.0, 0.1])
def test_a_reply_does_not_risk_what_earlier_ones_gained(
    curve: dict[int, float], draft_s: float
) -> None:
    simulation = Simulation(curve, draft_s=draft_s)
    for _ in range(200):
        simulation.step(0.97)
    assert simulation.controller.numbers[accounts.ACCOUNT_S] > 10.0
    simulation.controller.begin()
    before = simulation.clock, simulation.tokens
    for _ in range(60):
        simulation.step(0.0)
    lost = simulation.clock - before[0] - (simulation.tokens - before[1])
    assert lost <= START_PASSES + 0.02 * 60 + max(curve.values()) * 0.1 + draft_s


def test_a_look_that_was_held_up_does_not_silence_those_to_come() -> None:
    simulation = Simulation(FLAT, draft_s=0.1)
    for _ in range(300):
        simulation.step(0.0)
    controller = simulation.controller
    assert controller.numbers[accounts.ACCOUNT_S] < controller.numbers[accounts.DRAFT_S]
    before = controller.numbers[accounts.PROBE_S]
    prospects = Prospects()
    controller.draft_room(prospects, 15)
    prospects.asked = True
    controller.choose([prospects], [chain(15)], 2.0)
    outcome = StepOutcome(DraftTree.root(1), [0], WRONG, [WRONG])
    controller.observe([prospects], [outcome], 1.0, 2.0)
    assert controller.numbers[accounts.PROBE_S] > before - 0.6


@pytest.mark.parametrize("draft_s", [0.001, 0.01])
def test_a_text_that_turns_predictable_is_noticed(draft_s: float) -> None:
    simulation = Simulation(FLAT, draft_s=draft_s)
    for _ in range(400):
        simulation.step(0.0)
    assert sum(simulation.verified[-100:]) <= (0 if draft_s < 0.002 else 20)
    for _ in range(60):
        simulation.step(0.95)
    first = next(i for i, nodes in enumerate(simulation.verified[400:]) if nodes)
    assert first <= (12 if draft_s < 0.002 else 40)
    assert np.mean(simulation.verified[-4:]) >= 4


def test_predictable_text_is_fast() -> None:
    simulation = Simulation(FLAT)
    for _ in range(300):
        simulation.step(0.9)
    assert simulation.speedup > 2.5


def test_costly_drafts_are_asked_for_less_often_while_they_are_wrong() -> None:
    controller, prospects = Controller(CostCurve(FLAT), 16), Prospects()
    asked = 0
    for _ in range(300):
        if not controller.draft_room(prospects, 15):
            controller.rest(1.0)
            continue
        asked += 1
        controller.choose([prospects], [chain(15)], 0.05)
        root = DraftTree.root(1)
        controller.observe([prospects], [StepOutcome(root, [0], WRONG, [WRONG])], 1.0, 0.05)
    assert asked * 0.05 < accounts.EARNED_BEFORE + 300 * 2 * accounts.PROBE_ALLOWANCE


@pytest.mark.parametrize(("study_s", "least", "most"), [(0.0005, 95, 100), (0.05, 2, 12)])
def test_looking_at_logits_of_plain_steps_is_bounded(study_s: float, least: int, most: int) -> None:
    controller = Controller(CostCurve(FLAT), 16)
    studied = 0
    for _ in range(100):
        may = controller.may_study
        studied += may
        controller.rest(1.0, may * study_s)
    assert least <= studied <= most


def test_a_first_draft_that_compiles_a_kernel_is_soon_forgiven() -> None:
    simulation = Simulation(FLAT, draft_s=100.0)
    simulation.step(0.9)
    simulation.draft_s = 0.001
    for _ in range(150):
        simulation.step(0.9)
    assert np.mean(simulation.verified[-20:]) > 3
