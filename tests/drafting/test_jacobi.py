from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_counts import NaiveTable

from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.jacobi import JacobiDrafter
from edgespec.drafting.tree import DraftTree, StepOutcome, TopTokens
from tests.support.draft_trees import TEXTS, children, step, verify


@settings(max_examples=40, deadline=None)
@given(text=TEXTS, rooms=st.lists(st.integers(0, 12), min_size=1, max_size=10))
def test_the_pool_is_that_of_plain_dictionaries(text: list[int], rooms: list[int]) -> None:
    drafter = JacobiDrafter()
    drafter.reset(text)
    pool = NaiveTable(drafter.orders, drafter.ways)
    for room in rooms:
        rates = drafter._rates[:, RATE].tolist()
        expected = pool.children(text, rates)
        found = drafter.propose(200)
        assert set(children(found, 0)) == {t for t, p in expected.items() if p >= 0.01}
        before = list(text)
        teach(pool, before, step(drafter, text, room))


def teach(pool: NaiveTable, text: list[int], outcome: StepOutcome) -> None:
    """What a verified tree below `text` teaches, told once more in plain Python."""
    tree, top = outcome.tree, outcome.top
    assert top is not None
    guesses = top.tokens[:, 0].tolist()
    contexts = [text]
    for node in range(1, len(tree)):
        contexts.append([*contexts[tree.parents[node]], int(tree.tokens[node])])

    def say(context: list[int], token: int) -> None:
        for order in range(1, min(pool.orders, len(context)) + 1):
            pool.count(tuple(context[-order:]), token)

    for node in reversed(range(len(tree))):
        say(contexts[node], guesses[node])
    line, last = [*text, *outcome.new_tokens], outcome.path[-1]
    while True:
        below = [child for child in range(last + 1, len(tree)) if tree.parents[child] == last]
        if not below:
            return
        last = below[0]
        say(line, guesses[last])
        line.append(guesses[last])


def test_answers_behind_a_rejected_token_move_behind_the_one_that_came() -> None:
    drafter = JacobiDrafter()
    drafter.reset([1, 2])
    tree = DraftTree.chain(2, [3, 4, 5], [0.5, 0.5, 0.5], 1)
    guesses = np.array([[9], [4], [5], [6]], np.int32)
    outcome = StepOutcome(tree, [0], 9, [9], TopTokens(guesses, np.zeros((4, 1), np.float32)))
    drafter.observe(outcome)
    drafter.extend([9])
    assert drafter.propose(3).tokens.tolist() == [9, 4, 5, 6]


def test_a_steady_target_is_learnt() -> None:
    drafter, text = JacobiDrafter(), [5]
    drafter.reset(text)
    lengths = [len(step(drafter, text, 8).path) for _ in range(300)]
    assert sum(lengths[200:]) > 2 * sum(lengths[:100])


def test_trees_of_others_teach_too() -> None:
    drafter, text = JacobiDrafter(), [5]
    drafter.reset(text)
    verify(drafter, text, DraftTree.chain(5, [8, 9], [0.5, 0.5], 3))
    drafter.extend([8])
    assert len(drafter.propose(4)) > 1
