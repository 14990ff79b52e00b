from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_counts import NaiveTable

from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.ngram import NgramDrafter
from edgespec.drafting.tree import StepOutcome
from tests.support.draft_trees import TEXTS, children, paths, step


@settings(max_examples=80, deadline=None)
@given(text=TEXTS, max_nodes=st.integers(0, 30))
def test_trees_are_those_of_plain_dictionaries(text: list[int], max_nodes: int) -> None:
    """Every node has the oracle's probability, and no better one was left out."""
    drafter = NgramDrafter()
    drafter.reset(text)
    oracle = NaiveTable(drafter.orders, drafter.ways)
    oracle.feed(text)
    rates = drafter._rates[:, RATE].tolist()
    tree = drafter.propose(max_nodes)
    whole, probabilities = [list(text)], paths(tree)
    for node in range(1, len(tree)):
        whole.append([*whole[tree.parents[node]], int(tree.tokens[node])])
    left_out = [0.0]
    for node in range(len(tree)):
        expected = oracle.children(whole[node], rates)
        below = {int(tree.tokens[c]): c for c in range(1, len(tree)) if tree.parents[c] == node}
        assert set(below) <= set(expected)
        for token, p_accept in expected.items():
            if token in below and probabilities[node] * p_accept < 0.011:
                continue  # too little for the longest context: a shorter one may offer it again
            if token in below:
                assert tree.p_accept[below[token]] == pytest.approx(p_accept, rel=1e-5)
            else:
                left_out.append(probabilities[node] * p_accept)
    if len(tree) <= max_nodes:
        assert max(left_out) < 0.011  # only paths that never pay
    elif max_nodes:
        assert max(left_out) <= min(probabilities[1:]) * (1 + 1e-5)


def test_the_longest_context_speaks_first_and_shorter_ones_fill_up() -> None:
    drafter = NgramDrafter()
    drafter.reset([9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2, 4, 9, 1, 2])
    assert children(drafter.propose(8), 0)[:2] == [3, 4]


def test_what_was_right_is_trusted_more() -> None:
    drafter, text = NgramDrafter(), [1, 2, 3] * 8
    drafter.reset(text)
    before = float(drafter.propose(1).p_accept[1])
    for _ in range(30):
        tree = drafter.propose(1)
        drafter.observe(StepOutcome(tree, [0, 1], 9, [int(tree.tokens[1]), 9]))
    assert float(drafter.propose(1).p_accept[1]) > before


def test_old_contexts_make_room_for_new_ones() -> None:
    drafter = NgramDrafter(64 * 1024)
    text = (np.arange(9973) * 7919 % 9973).astype(np.int32)
    drafter.reset(text)
    drafter.extend(text[-50:-1].tolist())
    newest = children(drafter.propose(4), 0)
    drafter.extend(text[10:60].tolist())
    assert newest == [text[-1]]
    assert children(drafter.propose(4), 0) == []


def test_text_is_learnt_while_it_is_written() -> None:
    drafter, text = NgramDrafter(), [5]
    drafter.reset(text)
    accepted = [len(step(drafter, text, 8).path) - 1 for _ in range(400)]
    assert sum(accepted[200:]) > sum(accepted[:200])
