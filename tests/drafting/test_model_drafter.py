"""Chains that a model drafts: tokens as the target draws them, trees, rates, lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.drafting.model.chains import MEAN, NUM_MARGINS, SECOND, best_length
from edgespec.drafting.model.flat import FlatDrafter
from edgespec.drafting.model.model_drafter import LONGEST, ModelDrafter, with_maxima
from edgespec.drafting.rates import RATE
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.errors import OptionError
from edgespec.verification.match import Verifier
from edgespec.verification.sampling import SamplingParams
from tests.support.draft_trees import TEXTS, VOCABULARY, check_tree, paths

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "usual": {},
    "top-p alone": {"top_k": 60, "top_p": 0.5, "min_p": 0.0},
    "hot": {"temperature": 1.5, "top_k": 50, "top_p": 1.0, "min_p": 0.0},
    "one candidate": {"top_k": 1},
}


class Rows(ModelDrafter):
    """Drafts from given rows, one for each depth, for ever the last."""

    name = "rows"

    def __init__(self, rows: NDArray[np.float32]) -> None:
        super().__init__(rows.shape[1])
        self._given_rows = rows

    def _room(self) -> int:
        return LONGEST

    def _row(self, token: int, depth: int) -> tuple[Any, Any]:
        row = min(depth, len(self._given_rows) - 1)
        return with_maxima(self._given_rows[row : row + 1], None)


def random_rows(count: int, vocab: int = VOCABULARY, seed: int = 0, spread: float = 2.0) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((count, vocab)) * spread).astype(np.float32)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 500))
def test_drafts_are_drawn_as_the_target_draws(
    sampling: dict[str, Any], seed: int, length: int
) -> None:
    """A model that says what the target says drafts what it will say."""
    params = SamplingParams(**({"seed": seed} | sampling))
    rows = random_rows(3, vocab=1000, seed=seed)
    drafter = Rows(rows)
    drafter.begin(params)
    drafter.reset([1] * length)
    drafter.propose(LONGEST)
    verifier = Verifier(1000, params, 1)
    for depth in range(drafter._num_drafts):
        row = rows[min(depth, 2)]
        assert drafter._drafts[depth, 0] == verifier.sample(row, [1], length - 1 + depth)
    assert drafter._num_drafts > 0


def test_the_runner_up_is_the_next_best() -> None:
    rows = np.zeros((1, VOCABULARY), np.float32)
    rows[0, [7, 30]] = 3.0, 2.0
    drafter = Rows(rows)
    drafter.reset([1])
    tree = drafter.propose(2)
    assert tree.tokens.tolist()[:2] == [1, 7]
    assert drafter._drafts[0].tolist() == [7, 30]


@settings(max_examples=40, deadline=None)
@given(
    text=TEXTS, rooms=st.lists(st.integers(0, 20), min_size=1, max_size=6), seed=st.integers(0, 99)
)
def test_proposals_are_trees_best_path_first(text: list[int], rooms: list[int], seed: int) -> None:
    drafter = Rows(random_rows(LONGEST, seed=seed, spread=0.5 + seed % 4))
    drafter.begin(SamplingParams(temperature=float(seed % 2), seed=seed))
    drafter.reset(text)
    for room in rooms:
        tree = drafter.propose(room)
        check_tree(tree, text[-1], room)
        order = paths(tree)
        assert all(a >= b * (1 - 1e-5) for a, b in zip(order, order[1:], strict=False))
        drafter.observe(StepOutcome(tree, [0], 3, [3]))


def test_a_runner_up_that_comes_more_often_is_first() -> None:
    rows = np.zeros((1, VOCABULARY), np.float32)
    rows[0, [7, 30]] = 3.0, 2.9
    drafter = Rows(rows)
    drafter.reset([1])
    for _ in range(50):
        drafter.observe(StepOutcome(drafter.propose(2), [0], 30, [30]))
    assert drafter.propose(2).tokens.tolist() == [1, 30, 7]


def test_rates_follow_what_came() -> None:
    """Drafts that are never right lose their rate, and the runners-up win."""
    rows = np.zeros((1, VOCABULARY), np.float32)
    rows[0, [7, 30]] = 3.0, 2.9
    drafter = Rows(rows)
    drafter.reset([1])
    for _ in range(200):
        tree = drafter.propose(4)
        drafter.observe(StepOutcome(tree, [0], 30, [30]))
        drafter.extend([30])
    kind = int(drafter._kinds[0])
    assert drafter._rates[kind, RATE] < 0.1 < 0.9 < drafter._rates[kind + SECOND, RATE]
    assert drafter._rates[MEAN, RATE] < 0.1
    assert drafter.propose(4).tokens.tolist()[:3] in ([30, 30, 7], [30, 7, 30])


def test_kinds_grow_with_the_margin() -> None:
    drafter = FlatDrafter(VOCABULARY)
    margins = np.linspace(0.0, 40.0, 400)
    kinds = [drafter._kind(float(margin)) for margin in margins]
    assert kinds == sorted(kinds)
    assert set(kinds) == set(range(NUM_MARGINS))
    drafter.begin(SamplingParams(temperature=1.0, seed=1))
    assert drafter._kind(0.0) == NUM_MARGINS


@given(
    mean=st.floats(0.01, 0.99),
    step=st.floats(0.0, 2.0),
    longest=st.integers(0, LONGEST),
)
def test_the_best_length(mean: float, step: float, longest: int) -> None:
    """The least seconds a token, over all lengths written out."""
    prices = np.array([1.0, 1.1, 1.15, 1.3, 1.5])
    expected = [1.0]
    for length in range(1, min(longest, 4) + 1):
        tokens = sum(mean**power for power in range(length + 1))
        expected.append((prices[length] + length * step) / tokens)
    assert best_length(prices, mean, step, longest) == pytest.approx(min(expected))


def test_a_chain_ends_where_it_stops_to_pay() -> None:
    """With drafts that cost next to nothing, and with costly ones."""
    lengths = []
    for step_s in (0.001, 0.6):
        drafter = Rows(random_rows(LONGEST, seed=3))
        drafter.attach(None, np.linspace(1.0, 1.5, 16))  # type: ignore[arg-type]
        drafter.reset([1])
        drafter._step_s = step_s
        drafter._observe_price = lambda seconds: None  # type: ignore[method-assign]
        drafter.propose(LONGEST)
        lengths.append(drafter._num_drafts)
    assert lengths[0] > 3 > lengths[1] == 1


def test_damaged_logits_draft_nothing() -> None:
    drafter = Rows(np.full((1, VOCABULARY), np.nan, np.float32))
    drafter.reset([1])
    assert len(drafter.propose(4)) == 1


def test_no_text_no_proposal() -> None:
    with pytest.raises(OptionError, match="no text to continue"):
        FlatDrafter(VOCABULARY).propose(4)


def test_its_size_is_small() -> None:
    drafter = FlatDrafter(200_000)
    assert drafter.size_bytes < 64 * 1024
    assert isinstance(_proposed(drafter), DraftTree)


def _proposed(drafter: ModelDrafter) -> DraftTree:
    drafter.reset([1])
    return drafter.propose(2)
