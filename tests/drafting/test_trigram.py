from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_counts import NaiveTable

from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.trigram import TrigramDrafter
from edgespec.drafting.tree import StepOutcome
from tests.support.draft_trees import TEXTS, children, step

Trials = dict[tuple[int, int, int], list[int]]


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, rooms=st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_scores_are_those_of_plain_dictionaries(text: list[int], rooms: list[int]) -> None:
    drafter = TrigramDrafter()
    drafter.reset(text)
    matrix, trials = NaiveTable(2, drafter.ways), Trials()
    for room in rooms:
        rates = drafter._rates[:, RATE].tolist()
        expected = naive_children(matrix, trials, text, rates)
        tree = drafter.propose(200)
        found = {
            int(tree.tokens[c]): float(tree.p_accept[c])
            for c in range(1, len(tree))
            if tree.parents[c] == 0
        }
        assert set(found) == {token for token, p in expected.items() if p >= 0.01}
        for token, p_accept in found.items():
            assert p_accept == pytest.approx(expected[token], rel=1e-5)
        before = list(text)
        outcome = step(drafter, text, room)
        try_out(trials, before, outcome)
        matrix.feed(text[-2 - len(outcome.new_tokens) :], min(len(before), 2))


def naive_children(
    matrix: NaiveTable, trials: Trials, text: list[int], rates: list[float]
) -> dict[int, float]:
    found: dict[int, float] = {}
    left, before = 1.0, text[-2] if len(text) > 1 else -1
    for order in (2, 1):
        context = tuple(text[-order:])
        total = matrix.totals.get(context, 0)
        if not total or len(text) < order:
            continue
        values = {}
        for token, weight in matrix.rows[context][:4]:
            tried, right = trials.get((before, text[-1], token), [0, 0])
            share = weight / total
            values[token] = (right + 4 * share) / (tried + 4)
            values[token] += 0.1 * share * math.sqrt(total) / (1 + tried)
        whole = max(sum(values.values()), 1.0)
        kind = (order - 1) * 3 + (0 if total <= 1 else 1 if total <= 3 else 2)
        new = {t: rates[kind] * left * v / whole for t, v in values.items() if t not in found}
        found |= new
        left -= sum(new.values())
    return found


def try_out(trials: Trials, text: list[int], outcome: StepOutcome) -> None:
    tree, node = outcome.tree, 0
    for place, token in enumerate(outcome.new_tokens):
        line = [-1, *text, *outcome.new_tokens[:place]]
        below = [c for c in range(1, len(tree)) if tree.parents[c] == node]
        for child in below:
            trial = trials.setdefault((line[-2], line[-1], int(tree.tokens[child])), [0, 0])
            trial[0] += 1
            trial[1] += int(tree.tokens[child] == token)
        right = [child for child in below if tree.tokens[child] == token]
        if not right:
            return
        node = right[0]


def test_the_matrix_outlives_a_text_and_prompts_do_not_enter() -> None:
    drafter, text = TrigramDrafter(), [1, 2]
    drafter.reset(text)
    step(drafter, text, 4)
    drafter.reset([8, 9, 8, 9, 8])
    assert children(drafter.propose(8), 0) == []
    drafter.reset([1, 2])
    assert children(drafter.propose(8), 0) == text[2:3]


def test_what_was_written_while_nobody_asked_is_learnt_too() -> None:
    drafter = TrigramDrafter()
    drafter.reset([1, 2])
    drafter.extend([3, 4, 5])
    drafter.reset([9, 2, 3])
    assert children(drafter.propose(8), 0) == [4]


def test_what_is_never_right_gives_way_to_what_was_tried_less() -> None:
    drafter = TrigramDrafter()

    def told(follower: int, *, drafts: bool) -> list[int]:
        drafter.reset([1, 2])
        tree = drafter.propose(1 if drafts else 0)
        drafter.observe(StepOutcome(tree, [0], follower, [follower]))
        drafter.extend([follower])
        return children(tree, 0)

    for follower in (5, 5, 5, 6):
        told(follower, drafts=False)
    assert told(6, drafts=True) == [5]
    for _ in range(3):
        told(6, drafts=True)
    assert told(6, drafts=True) == [6]
