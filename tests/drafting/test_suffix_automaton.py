from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_suffix import followers, longest_match

from edgespec.drafting.text.automaton import LAST, NUM_EDGES, NUM_STATES, TARGET, find_edge
from edgespec.drafting.text.suffix_automaton import SuffixAutomatonDrafter
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.errors import OptionError

texts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=40),
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.builds(
        lambda unit, times: unit * times,
        st.lists(st.integers(0, 9), min_size=1, max_size=7),
        st.integers(1, 9),
    ),
)


def fed(text: Sequence[int], max_bytes: int = 2**20) -> SuffixAutomatonDrafter:
    drafter = SuffixAutomatonDrafter(max_bytes)
    drafter.reset(text)
    return drafter


def contains(drafter: SuffixAutomatonDrafter, tokens: Sequence[int]) -> bool:
    state = 0
    for token in tokens:
        edge = find_edge(drafter._edges, drafter._slots, state, token)
        if edge < 0:
            return False
        state = int(drafter._edges[edge, TARGET])
    return True


def children(tree: DraftTree, node: int) -> list[int]:
    return [child for child in range(node + 1, len(tree)) if tree.parents[child] == node]


@settings(max_examples=150, deadline=None)
@given(text=texts, cut=st.integers(0, 60))
def test_the_match_is_the_longest_repeated_suffix(text: list[int], cut: int) -> None:
    drafter = fed(text[:cut])
    for token in text[cut:]:
        drafter.extend([token])
        assert drafter.propose(1).tokens[0] == token
    assert drafter.match_length == longest_match(text)
    n = len(text)
    assert drafter._sizes[NUM_STATES] <= 2 * n + 1
    assert drafter._sizes[NUM_EDGES] <= 3 * n


@settings(max_examples=60, deadline=None)
@given(text=texts, data=st.data())
def test_the_automaton_knows_the_texts_substrings_and_no_others(
    text: list[int], data: st.DataObject
) -> None:
    drafter = fed(text)
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, len(text)))
    assert contains(drafter, text[begin:end])
    other = data.draw(st.lists(st.integers(0, 9), max_size=5))
    windows = [text[i : i + len(other)] for i in range(len(text) + 1)]
    assert contains(drafter, other) == (other in windows)


@settings(max_examples=150, deadline=None)
@given(text=texts, max_nodes=st.integers(0, 20))
def test_proposals_are_trees_of_what_followed_the_match(text: list[int], max_nodes: int) -> None:
    drafter = fed(text)
    tree = drafter.propose(max_nodes)
    assert len(tree) <= max_nodes + 1
    assert tree.tokens[0] == text[-1]
    assert tree.parents[0] == -1 and tree.sources[0] == 0
    assert tree.p_accept[0] == 1.0
    assert all(0 <= tree.parents[i] < i for i in range(1, len(tree)))
    match = longest_match(text)
    seen = followers(text, text[-1:])
    first = [int(tree.tokens[child]) for child in children(tree, 0)]
    assert set(first) <= set(seen)
    assert bool(first) == bool(seen and max_nodes)
    assert not first or match == 0 or first[0] in followers(text, text[len(text) - match :])
    bigrams = set(zip(text, text[1:], strict=False))
    for node in range(1, len(tree)):
        assert (tree.tokens[tree.parents[node]], tree.tokens[node]) in bigrams
    for node in range(len(tree)):
        below = children(tree, node)
        assert len({int(tree.tokens[child]) for child in below}) == len(below)
        assert sum(float(tree.p_accept[child]) for child in below) <= 1.0


@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_nodes_come_in_order_of_their_paths_probability(text: list[int]) -> None:
    tree = fed(text).propose(20)
    paths = [1.0]
    for node in range(1, len(tree)):
        paths.append(paths[tree.parents[node]] * float(tree.p_accept[node]))
    assert all(a >= b * (1 - 1e-5) for a, b in zip(paths, paths[1:], strict=False))


@pytest.mark.parametrize("period", [1, 3, 7])
def test_periodic_text_is_drafted_beyond_its_end(period: int) -> None:
    unit = list(range(10, 10 + period))
    drafter = fed(unit * 24)
    tree = drafter.propose(30)
    assert tree.tokens[1:].tolist() == (unit * 30)[:30]
    assert tree.parents.tolist() == list(range(-1, 30))


def test_different_continuations_branch_and_the_more_frequent_comes_first() -> None:
    tree = fed([1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 8, 1, 2]).propose(8)
    first = [int(tree.tokens[child]) for child in children(tree, 0)]
    assert first == [3, 4]


def test_of_equally_frequent_continuations_the_latest_comes_first() -> None:
    tree = fed([1, 2, 3, 9, 1, 2, 4, 8, 1, 2]).propose(8)
    first = [int(tree.tokens[child]) for child in children(tree, 0)]
    assert first == [4, 3]


def test_shorter_matches_branch_off_below_the_longest() -> None:
    text = [7, 1, 2, 3, 9, 5, 1, 2, 4, 9, 5, 1, 2, 4, 9, 7, 1, 2]
    first = fed(text).propose(20)
    below = [int(first.tokens[child]) for child in children(first, 0)]
    assert followers(text, [7, 1, 2]) == [3]
    assert below == [3, 4]


def test_text_without_repetition_proposes_nothing() -> None:
    assert len(fed([1, 2, 3, 4]).propose(8)) == 1


def test_right_drafts_raise_the_estimate_and_wrong_ones_lower_it() -> None:
    text = [1, 2, 3, 4, 5, 1, 2]

    def estimate_after(next_token: int) -> float:
        drafter = fed(text)
        for _ in range(20):
            tree = drafter.propose(1)
            drafter.observe(StepOutcome(tree, [0], next_token, [next_token]))
        return float(drafter.propose(1).p_accept[1])

    fresh = float(fed(text).propose(1).p_accept[1])
    assert estimate_after(9) < 0.5 * fresh < fresh < estimate_after(3)


@pytest.mark.parametrize("source", [1, 7])
def test_nodes_carry_their_drafters_index(source: int) -> None:
    drafter = SuffixAutomatonDrafter(source=source)
    drafter.reset([1, 2, 1])
    assert drafter.propose(1).sources.tolist() == [0, source]


@pytest.mark.parametrize("kind", ["random", "constant", "distinct", "binary"])
def test_the_cap_holds_and_the_latest_text_stays(kind: str) -> None:
    num_tokens = 5_000 if numba.config.DISABLE_JIT else 1_000_000
    rng = np.random.default_rng(1)
    text = {
        "random": rng.zipf(1.3, num_tokens).clip(0, 50_000),
        "constant": np.zeros(num_tokens),
        "distinct": np.arange(num_tokens),
        "binary": rng.integers(0, 2, num_tokens),
    }[kind].astype(np.int32)
    cap = 300_000
    tracemalloc.start()
    drafter = SuffixAutomatonDrafter(cap)
    largest = 0
    for begin in range(0, num_tokens, 701):
        drafter.extend(text[begin : begin + 701])  # type: ignore[arg-type]
        largest = max(largest, drafter.size_bytes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert largest <= cap
    assert peak <= cap + 50_000  # Python's own objects and the proposal's small arrays
    assert drafter.propose(1).tokens[0] == text[-1]
    kept = drafter._num_tokens
    assert kept >= drafter._most_tokens // 2
    np.testing.assert_array_equal(drafter._text[:kept], text[-kept:])
    assert drafter._states[drafter._sizes[LAST], 1] == kept


def test_a_prompt_longer_than_the_store_keeps_its_end() -> None:
    drafter = SuffixAutomatonDrafter(SuffixAutomatonDrafter.least_bytes)
    drafter.reset(np.arange(10_000, dtype=np.int32))
    assert drafter.size_bytes <= SuffixAutomatonDrafter.least_bytes
    assert drafter.propose(4).tokens[0] == 9_999


def test_reset_forgets_the_text() -> None:
    drafter = fed([1, 2, 3, 1, 2])
    drafter.reset([7, 8, 1, 2])
    assert drafter.match_length == 0


def test_misuse_is_explained() -> None:
    with pytest.raises(OptionError, match="give it 65536 or more"):
        SuffixAutomatonDrafter(1000)
    with pytest.raises(OptionError, match="call reset"):
        SuffixAutomatonDrafter().propose(3)
