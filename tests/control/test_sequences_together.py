"""Nodes shared among texts: the best share by trying all, and what speculation may cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.control import accounts
from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.node_choice import MARGIN
from edgespec.control.prospects import Prospects
from edgespec.drafting.tree import DraftTree, StepOutcome

RIGHT, WRONG = 7, 8
FLAT = {1: 1.0, 4: 1.1, 8: 1.5, 16: 2.6}
STEEP = {1: 1.0, 2: 1.8, 4: 2.8, 8: 5.0, 16: 10.0}


@st.composite
def drafts(draw: st.DrawFn) -> DraftTree:
    """Trees as the market gives them: every node comes after those that are surer."""
    count = draw(st.integers(1, 5))
    parents, given, paths = [-1], [1.0], [1.0]
    for node in range(1, count):
        parent = draw(st.integers(0, node - 1))
        most = min(1.0, paths[-1] / paths[parent])
        share = draw(st.floats(0.05, 1.0)) * most
        parents.append(parent)
        given.append(share)
        paths.append(paths[parent] * share)
    numbers = np.arange(count)
    return DraftTree(
        numbers.astype(np.int32),
        np.array(parents, np.int16),
        np.array(given, np.float32),
        np.minimum(numbers, 1).astype(np.uint8),
    )


def best_by_trying(
    trees: Sequence[DraftTree], limits: Sequence[int], curve: CostCurve, draft_s: float, most: int
) -> float:
    """The most goodput of any shares, and no less than plain decoding with the margin."""
    best = MARGIN * len(trees) / (curve.seconds(len(trees)) + draft_s)
    rooms = [
        range(min(len(tree) - 1, limit) + 1) for tree, limit in zip(trees, limits, strict=True)
    ]
    for counts in product(*rooms):
        if sum(counts) + len(trees) <= most:
            best = max(best, goodput(trees, counts, curve, draft_s))
    return best


def goodput(
    trees: Sequence[DraftTree], counts: Sequence[int], curve: CostCurve, draft_s: float
) -> float:
    """Expected tokens a second."""
    expected = 0.0
    for tree, count in zip(trees, counts, strict=True):
        paths = [1.0]
        for node in range(1, count + 1):
            paths.append(paths[tree.parents[node]] * float(tree.p_accept[node]))
        expected += sum(paths)
    return expected / (curve.seconds(len(trees) + sum(counts)) + draft_s)


@given(
    trees=st.lists(drafts(), min_size=1, max_size=4),
    data=st.data(),
    steepness=st.sampled_from([FLAT, STEEP]),
)
@settings(deadline=None)
def test_no_other_shares_promise_more(
    trees: list[DraftTree], data: st.DataObject, steepness: dict[int, float]
) -> None:
    most = data.draw(st.integers(len(trees), 12), label="nodes")
    limits = [data.draw(st.integers(0, 4)) for _ in trees]
    draft_s = data.draw(st.sampled_from([0.0, 0.1]))
    curve = CostCurve(steepness, 16)
    controller = Controller(curve, most)
    controller.numbers[accounts.ACCOUNT_S] = 100.0
    limited = [tree.take(1 + limit) for tree, limit in zip(trees, limits, strict=True)]
    counts = controller.choose([Prospects() for _ in trees], limited, draft_s)
    assert sum(counts) + len(trees) <= most
    assert all(
        count <= min(len(tree) - 1, limit)
        for count, tree, limit in zip(counts, trees, limits, strict=True)
    )
    best = best_by_trying(trees, limits, curve, draft_s, most)
    found = goodput(trees, counts, curve, draft_s)
    if sum(counts):
        assert found == pytest.approx(best, rel=1e-6)
    else:
        assert best == pytest.approx(MARGIN * found, rel=1e-6)


class Simulation:
    """Texts without a model: the clock is the curve, and what a text's drafts hit is drawn."""

    def __init__(self, curve: dict[int, float], hit_rates: Sequence[float], draft_s: float) -> None:
        self.curve = CostCurve(curve, 32)
        self.controller = Controller(CostCurve(curve, 32), 32)
        self.prospects = [Prospects() for _ in hit_rates]
        self.hit_rates, self.draft_s = hit_rates, draft_s
        self.rng = np.random.default_rng(3)
        self.clock, self.tokens = 0.0, 0
        self.verified = np.zeros(len(hit_rates), np.int64)

    def step(self) -> None:
        trees, draft_s = [], 0.0
        for one, rate in zip(self.prospects, self.hit_rates, strict=True):
            room = self.controller.draft_room(one, 8, len(self.prospects))
            tree = DraftTree.root(1)
            if room:
                told = min(max(rate, 0.02), 0.98)  # calibrated
                tree = DraftTree.chain(1, [RIGHT] * min(room, 8), [told] * min(room, 8), 1)
                draft_s += self.draft_s
            trees.append(tree)
        counts = self.controller.choose(self.prospects, trees, draft_s)
        outcomes = []
        for text, (tree, count) in enumerate(zip(trees, counts, strict=True)):
            hits = 0
            while self.rng.random() < self.hit_rates[text]:
                hits += 1
            accepted = min(hits, count)
            new = [RIGHT] * accepted + [RIGHT if hits > accepted else WRONG]
            path = list(range(accepted + 1))
            outcomes.append(StepOutcome(tree.take(1 + count), path, new[-1], new))
            self.tokens += len(new)
        self.verified += counts
        seconds = self.curve.seconds(len(trees) + sum(counts))
        if any(one.asked for one in self.prospects):
            self.controller.observe(self.prospects, outcomes, seconds, draft_s)
        else:
            self.controller.rest(seconds, num_sequences=len(outcomes))
        self.clock += seconds + draft_s

    @property
    def speedup(self) -> float:
        """Against a plain pass for every token of each text."""
        plain = self.curve.seconds(len(self.prospects)) / len(self.prospects)
        return self.tokens * plain / self.clock


def run(curve: dict[int, float], hit_rates: Sequence[float], draft_s: float) -> Simulation:
    simulation = Simulation(curve, hit_rates, draft_s)
    for _ in range(2000):
        simulation.step()
    return simulation


def test_nodes_go_to_the_text_that_can_be_foretold() -> None:
    found = run(FLAT, [0.05, 0.9, 0.05, 0.75], 0.001)
    foretold, likely, *others = (found.verified[text] for text in (1, 3, 0, 2))
    assert foretold > 2 * likely > 10 * max(others)
    assert found.speedup > 1.2


@pytest.mark.parametrize("draft_s", [0.0001, 0.01, 0.2])
@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
def test_texts_that_nobody_foretells_cost_next_to_nothing(
    curve: dict[int, float], draft_s: float
) -> None:
    assert run(curve, [0.0, 0.02, 0.01, 0.0], draft_s).speedup > 0.98


def test_drafting_that_is_costly_is_asked_where_it_is_right() -> None:
    simulation = Simulation(FLAT, [0.0, 0.95], 0.05)
    asked = np.zeros(2, np.int64)
    for _ in range(1000):
        simulation.step()
        asked += [one.numbers[accounts.WAIT] == 0 for one in simulation.prospects]
    assert asked[1] > 4 * asked[0]
    assert simulation.speedup > 1.2


def test_a_pass_that_is_full_of_roots_drafts_nothing() -> None:
    controller = Controller(CostCurve(FLAT, 16), 4)
    assert [controller.draft_room(Prospects(), 8, texts) for texts in (3, 4)] == [1, 0]
