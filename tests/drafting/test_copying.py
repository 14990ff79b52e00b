from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.drafting.text.copying import CopyDrafter
from edgespec.drafting.tree import StepOutcome
from tests.support.draft_trees import children

PASSAGE = list(range(100, 140))


def write(drafter: CopyDrafter, reply: list[int], max_nodes: int = 8) -> list[int]:
    """Tokens of each step when `reply` is what comes."""
    done, steps = 0, []
    while done < len(reply):
        tree = drafter.propose(max_nodes)
        node, new = 0, []
        for token in reply[done:]:
            new.append(token)
            below = [c for c in range(node + 1, len(tree)) if tree.parents[c] == node]
            right = [child for child in below if tree.tokens[child] == token]
            if not right:
                break
            node = right[0]
        drafter.observe(StepOutcome(tree, [0], new[-1], new))
        drafter.extend(new)
        done += len(new)
        steps.append(len(new))
    return steps


def started(prompt: list[int]) -> CopyDrafter:
    drafter = CopyDrafter()
    drafter.reset(prompt)
    return drafter


def test_a_copy_goes_on_after_two_tokens() -> None:
    drafter = started([1, 2, 3, *PASSAGE, 4, 5])
    drafter.extend(PASSAGE[:1])
    assert len(drafter.propose(8)) == 1
    drafter.extend(PASSAGE[1:2])
    assert drafter.propose(8).tokens[1:].tolist() == PASSAGE[2:10]


def test_after_a_mismatch_the_copy_branches_at_once() -> None:
    """A token replaced, a token inserted, two tokens made one."""
    drafter = started([*PASSAGE, 4])
    drafter.extend([*PASSAGE[:6], 7])
    assert set(children(drafter.propose(8), 0)) == {PASSAGE[7], PASSAGE[6], PASSAGE[8]}


def test_every_kind_of_edit_costs_at_most_a_few_steps() -> None:
    half = PASSAGE[:20]
    rest = PASSAGE[20:]
    for edit in ([7], [7, 8], [7, 8, 9], []):
        for dropped in (0, 1, 2, 3):
            drafter = started([1, *PASSAGE, 4])
            steps = write(drafter, [*half, *edit, *rest[dropped:]])
            assert len(steps) <= 2 + 3 + 4 + 3, (edit, dropped, steps)


def test_a_distant_place_needs_three_tokens() -> None:
    drafter = started([*PASSAGE, *range(200, 240), 4])
    drafter.extend([*PASSAGE[:8], 220, 221])
    assert 222 not in children(drafter.propose(8), 0)
    drafter.extend([222])
    assert drafter.propose(4).tokens[1:].tolist() == [223, 224, 225, 226]


def test_a_lost_copy_is_given_up() -> None:
    drafter = started([*PASSAGE, 4])
    drafter.extend([*PASSAGE[:8], *range(300, 340)])
    assert len(drafter.propose(8)) == 1


def test_of_a_long_prompt_the_end_is_kept() -> None:
    drafter = CopyDrafter(64 * 1024)
    prompt = np.arange(60_000, dtype=np.int32)
    drafter.reset(prompt)
    drafter.extend([30, 31])
    assert len(drafter.propose(4)) == 1
    drafter.extend([59_000, 59_001])
    assert drafter.propose(2).tokens.tolist() == [59_001, 59_002, 59_003]


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 3), min_size=2, max_size=40),
    reply=st.lists(st.integers(0, 3), max_size=40),
)
def test_a_chain_is_a_piece_of_the_prompt(prompt: list[int], reply: list[int]) -> None:
    drafter = started(prompt)
    drafter.extend(reply)
    tree = drafter.propose(12)
    pieces = {tuple(prompt[a:b]) for a in range(len(prompt)) for b in range(a, len(prompt) + 1)}
    for node in range(1, len(tree)):
        path, at = [], node
        while at:
            path.append(int(tree.tokens[at]))
            at = int(tree.parents[at])
        assert tuple(reversed(path)) in pieces
