"""The steps of a replay against the plainest way to write them, and prompt lookup against its."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.control.cost_curve import CostCurve
from edgespec.drafting.registry import make_drafter
from edgespec.drafting.tree import DraftTree
from edgespec.errors import OptionError
from edgespec.tools.replay.lanes import choose_drafters, make_market
from edgespec.tools.replay.prompt_lookup import LONGEST_MATCH, NUM_TOKENS, PromptLookupDrafter
from edgespec.tools.replay.report import fixed_speedup
from edgespec.tools.replay.steps import Tally, replay_steps, right_path
from edgespec.tools.replay.transcripts import Transcript

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def looked_up(text: list[int], limit: int) -> list[int]:
    for size in range(LONGEST_MATCH, 0, -1):
        for start in range(len(text) - size):
            if len(text) > size and text[start : start + size] == text[-size:]:
                return text[start + size :][: min(NUM_TOKENS, limit)]
    return []


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, more=TEXTS, limit=st.integers(0, 12))
def test_prompt_lookup_is_the_first_match_of_the_longest_end(
    text: list[int], more: list[int], limit: int
) -> None:
    drafter = PromptLookupDrafter()
    for part in (text, more):
        drafter.reset(part)
        assert drafter.propose(limit).tokens.tolist()[1:] == looked_up(part, limit)
    drafter.extend(text)
    tree = drafter.propose(limit)
    assert tree.tokens.tolist() == [text[-1], *looked_up(more + text, limit)]
    assert tree.parents.tolist() == list(range(-1, len(tree) - 1))


def test_prompt_lookup_keeps_long_texts_and_wants_one() -> None:
    drafter = PromptLookupDrafter()
    with pytest.raises(OptionError, match="reset"):
        drafter.propose(3)
    drafter.reset(np.arange(5000))
    drafter.extend([3, 4])
    assert drafter.propose(2).tokens.tolist() == [4, 5, 6]
    assert drafter.size_bytes >= 4 * 5002


@settings(max_examples=100, deadline=None)
@given(data=st.data(), coming=st.lists(st.integers(0, 2), max_size=6))
def test_the_right_path_is_the_one_that_says_what_came(
    data: st.DataObject, coming: list[int]
) -> None:
    nodes: list[tuple[int, int]] = [(-1, 9)]
    for _ in range(data.draw(st.integers(0, 12))):
        node = (data.draw(st.integers(0, len(nodes) - 1)), data.draw(st.integers(0, 2)))
        if node not in nodes:
            nodes.append(node)
    tree = DraftTree(
        np.array([token for _, token in nodes], np.int32),
        np.array([parent for parent, _ in nodes], np.int16),
        np.ones(len(nodes), np.float32),
        np.ones(len(nodes), np.uint8),
    )
    expected = [0]
    for token in coming:
        if (expected[-1], token) not in nodes:
            break
        expected.append(nodes.index((expected[-1], token)))
    assert right_path(tree, coming) == expected


@pytest.mark.parametrize("name", ["suffix-automaton", "trigram", "copy", "prompt-lookup", "market"])
@settings(max_examples=25, deadline=None)
@given(prompt=TEXTS, output=st.lists(st.integers(0, 3), max_size=60), max_nodes=st.integers(1, 8))
def test_every_token_is_counted_once(
    name: str, prompt: list[int], output: list[int], max_nodes: int
) -> None:
    if name == "market":
        drafter = make_market(["suffix-automaton", "trigram"])
    else:
        drafter = PromptLookupDrafter() if name == "prompt-lookup" else make_drafter(name, 2**18)
    tally = Tally()
    for _ in range(2):
        replay_steps(drafter, Transcript(prompt, output), max_nodes, tally)
    assert tally.tokens == 2 * len(output) == tally.steps + tally.accepted
    assert tally.drafted == sum((nodes - 1) * count for nodes, count in tally.passes.items())
    assert sum(tally.passes.values()) == tally.steps
    assert max(tally.passes, default=1) <= max_nodes + 1
    assert sum(tally.drafted_by.values()) == tally.drafted
    assert sum(tally.accepted_by.values()) == tally.accepted


def test_a_repetition_is_drafted_whole() -> None:
    tally = Tally()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    replay_steps(PromptLookupDrafter(), Transcript(text, text), 8, tally)
    assert (tally.steps, tally.accepted) == (2, 7)


def test_the_price_of_always_verifying() -> None:
    tally = Tally(steps=3, tokens=6, drafted=4, accepted=3, drafting_s=1.0)
    tally.passes.update([1, 3, 3])
    assert fixed_speedup(tally, CostCurve({1: 2.0, 3: 4.0})) == pytest.approx(12.0 / 11.0)
    assert fixed_speedup(Tally(), CostCurve({1: 2.0})) == 1.0


def test_drafters_that_learn_from_logits_are_left_out() -> None:
    chosen, left_out = choose_drafters("all")
    assert set(left_out) == {"recycling", "stand", "jacobi"}
    assert {"suffix-automaton", "trigram", "hierarchy"} <= set(chosen)
    with pytest.raises(OptionError, match="logits"):
        choose_drafters("stand,jacobi")
