from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.drafting.tables.recycling import RANKS, RecyclingDrafter
from edgespec.drafting.tree import StepOutcome
from tests.support.draft_trees import TEXTS, children, step


@settings(max_examples=40, deadline=None)
@given(text=TEXTS, rooms=st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_followers_are_what_the_target_last_said_of_each_token(
    text: list[int], rooms: list[int]
) -> None:
    drafter = RecyclingDrafter()
    drafter.reset(text)
    known: dict[int, list[int]] = {}
    for room in rooms:
        tree = drafter.propose(12)
        for node in range(len(tree)):
            expected = known.get(int(tree.tokens[node]), [])
            assert set(children(tree, node)) <= set(expected)
        assert (len(tree) > 1) == (text[-1] in known)
        outcome = step(drafter, text, room)
        assert outcome.top is not None
        for node in reversed(range(len(outcome.tree))):
            known[int(outcome.tree.tokens[node])] = outcome.top.tokens[node].tolist()


def test_what_the_target_said_outlives_a_text() -> None:
    drafter, text = RecyclingDrafter(), [3]
    drafter.reset(text)
    step(drafter, text, 8)
    drafter.reset([9, 3])
    assert children(drafter.propose(RANKS), 0)[0] == text[1]


def test_ranks_that_are_right_come_first() -> None:
    """The target's second choice is always what comes."""
    drafter, text = RecyclingDrafter(), [3]
    drafter.reset(text)
    step(drafter, text, 0)
    root = [3]
    for _ in range(60):
        drafter.reset(root)
        tree = drafter.propose(4)
        second = children(tree, 0)[1] if len(tree) > 2 else 0
        drafter.observe(StepOutcome(tree, [0], second, [second]))
    tree = drafter.propose(4)
    assert tree.tokens[1] == second
