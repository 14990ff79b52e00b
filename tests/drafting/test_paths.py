"""Chains after others' drafts, and others after chains: who is asked, and what is learnt."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_model_drafter import Rows, random_rows

from edgespec.drafting.base import Drafter
from edgespec.drafting.market.market import Market
from edgespec.drafting.proposal import PROMPT, Proposal
from edgespec.drafting.tables.trigram import TrigramDrafter
from edgespec.drafting.text.suffix_automaton import SuffixAutomatonDrafter
from edgespec.drafting.tree import NO_PATH, DraftTree, Path, StepOutcome
from edgespec.verification.match import Verifier
from edgespec.verification.sampling import SamplingParams
from tests.support.draft_trees import TEXTS, VOCABULARY, as_tuple, check_tree

ROOT = 3
PATHS = st.lists(st.integers(0, 4), min_size=1, max_size=6)


def test_the_surest_path_of_a_tree() -> None:
    tree = DraftTree(
        np.array([ROOT, 1, 2, 4, 5], np.int32),
        np.array([-1, 0, 1, 0, 2], np.int16),
        np.array([1.0, 0.8, 0.5, 0.1, 0.9], np.float32),
        np.zeros(5, np.uint8),
    )
    assert tree.surest().tokens == [1, 2, 5]
    assert tree.surest().node == 4
    assert tree.surest().chance == pytest.approx(0.36)
    assert DraftTree.root(ROOT).surest() == NO_PATH


@pytest.mark.parametrize(
    ("chances", "length"),
    [([], 0), ([0.4, 0.9, 0.9], 0), ([0.9], 1), ([0.9, 0.8, 0.3], 2), ([0.9, 0.9, 0.9], 3)],
)
def test_the_end_of_what_is_known(chances: list[float], length: int) -> None:
    """Where the path is likely to have come and its next token is not known."""
    tokens = list(range(10, 10 + len(chances)))
    found = DraftTree.chain(ROOT, tokens, chances, 1).end_of_knowledge()
    assert found.tokens == tokens[:length]
    assert found.node == length
    assert found.chance == pytest.approx(float(np.prod(chances[:length])))


def longest_match(text: list[int], path: list[int]) -> list[int]:
    """The longest suffix of both that occurs in the text, before its last token unless it is all
    of it.
    """
    whole = text + path
    for length in range(len(whole) - (not path), 0, -1):
        suffix = whole[-length:]
        ends = range(length, len(text) + bool(path))
        if any(text[end - length : end] == suffix for end in ends):
            return suffix
    return []


@settings(deadline=None)
@given(text=TEXTS, path=PATHS)
def test_the_automaton_goes_on_from_the_longest_match(text: list[int], path: list[int]) -> None:
    drafter = SuffixAutomatonDrafter(2**18)
    drafter.reset(text)
    tree = drafter.propose_after(Path(path), 40, Proposal(1))
    check_tree(tree, path[-1], 40)
    match = longest_match(text, path)
    after = {
        text[end] for end in range(len(match), len(text)) if text[:end][-len(match) :] == match
    }
    if match:
        found = {int(token) for token in tree.tokens[1:][tree.parents[1:] == 0]}
        assert found >= after or len(tree) == 41
    else:
        assert len(tree) == 1


@settings(deadline=None)
@given(text=TEXTS, path=PATHS)
def test_the_matrix_is_read_as_if_the_path_had_come(text: list[int], path: list[int]) -> None:
    drafter, other = TrigramDrafter(2**18), TrigramDrafter(2**18)
    for one in (drafter, other):
        one.reset(text[:1])
        one.extend(text)
    other._words[PROMPT] = 1  # which teaches the matrix nothing
    other.extend(path)
    found = drafter.propose_after(Path(path), 12, Proposal(1))
    assert as_tuple(found)[:3] == as_tuple(other.propose(12))[:3]


@pytest.mark.parametrize("kind", [SuffixAutomatonDrafter, TrigramDrafter])
@settings(deadline=None, max_examples=30)
@given(text=TEXTS, path=PATHS)
def test_what_was_proposed_before_stays(kind: Any, text: list[int], path: list[int]) -> None:
    one, other = kind(2**18), kind(2**18)
    for drafter in (one, other):
        drafter.reset(text)
        drafter.extend(text)
        tree = drafter.propose(8)
        before = as_tuple(tree)
        if drafter is one:
            one.propose_after(Path(path), 8, Proposal(1))
        assert as_tuple(tree) == before
        drafter.observe(StepOutcome(tree, [0], text[0], text))
        drafter.extend(text)
    assert as_tuple(one.propose(12)) == as_tuple(other.propose(12))
    assert np.array_equal(one._rates, other._rates)


class After(Rows):
    """Rows that can follow a path."""

    follows = True

    def propose_after(self, path: Path, max_nodes: int, scratch: Proposal) -> DraftTree:
        return self._propose(path, max_nodes)


def test_a_chain_after_a_path_is_drawn_for_its_own_positions() -> None:
    params = SamplingParams(temperature=1.5, top_k=50, top_p=1.0, min_p=0.0, seed=5)
    drafter = After(random_rows(3, vocab=1000))
    drafter.begin(params)
    drafter.reset([1] * 7)
    tree = drafter.propose_after(Path([8, 9], 0.9), 12, Proposal(1))
    assert tree.tokens[0] == 9
    assert drafter._num_drafts > 0
    verifier = Verifier(1000, params, 1)
    for depth in range(drafter._num_drafts):
        row = drafter._given_rows[min(depth, 2)]
        assert drafter._drafts[depth, 0] == verifier.sample(row, [1], 6 + 2 + depth)


def test_a_chain_learns_only_where_its_path_came() -> None:
    rows = np.zeros((1, VOCABULARY), np.float32)
    rows[0, [7, 30]] = 3.0, 2.0
    drafter = After(rows)
    drafter.reset([1])
    before = drafter._rates.copy()
    for came in ([8, 5], [8], [5, 9, 7]):
        tree = drafter.propose_after(Path([8, 9]), 4, Proposal(1))
        drafter.observe(StepOutcome(tree, [0], came[-1], came))
        assert np.array_equal(before, drafter._rates)
    tree = drafter.propose_after(Path([8, 9]), 4, Proposal(1))
    drafter.observe(StepOutcome(tree, [0], 7, [8, 9, 7]))
    assert not np.array_equal(before, drafter._rates)


class Free(Drafter):
    """Says what it was given, and after a path what follows its last token."""

    name, size_bytes, follows = "free", 0, True

    def __init__(self, tokens: list[int], chances: list[float], after: dict[int, int]) -> None:
        self.tokens, self.chances, self.after = tokens, chances, after

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None: ...

    def extend(self, tokens: Sequence[int]) -> None: ...

    def propose(self, max_nodes: int) -> DraftTree:
        return DraftTree.chain(ROOT, self.tokens, self.chances, 1).take(max_nodes + 1)

    def propose_after(self, path: Path, max_nodes: int, scratch: Proposal) -> DraftTree:
        found = [self.after[path.tokens[-1]]] if path.tokens[-1] in self.after else []
        return DraftTree.chain(path.tokens[-1], found, [0.9] * len(found), 1).take(max_nodes + 1)


class Costly(Free):
    """Says what follows the token it is asked after."""

    name, costly = "costly", True

    def propose(self, max_nodes: int) -> DraftTree:
        return self.propose_after(Path([ROOT]), max_nodes, Proposal(1))


def markets(chances: list[float]) -> Market:
    free = Free([11, 12, 13], chances, {21: 31})
    market = Market(
        [free, Costly([], [], {ROOT: 20, 11: 22, 12: 21, 13: 23})],
        clock=itertools.count(0.0, 1e-6).__next__,
    )
    market.reset([ROOT])
    market._prices = np.linspace(1.0, 1.1, 16)
    return market


def path_to(tree: DraftTree, token: int) -> list[int]:
    """Tokens from below the root to the node with this one."""
    node, found = tree.tokens.tolist().index(token), []
    while node > 0:
        found.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return found[::-1]


def test_chains_follow_paths_and_others_follow_chains() -> None:
    tree = markets([0.9, 0.8, 0.3]).propose(8)
    assert path_to(tree, 21) == [11, 12, 21]
    assert path_to(tree, 31) == [11, 12, 21, 31]
    assert path_to(tree, 13) == [11, 12, 13]
    sources = dict(zip(tree.tokens.tolist(), tree.sources.tolist(), strict=True))
    assert [sources[token] for token in (11, 12, 13, 21, 31)] == [1, 1, 1, 2, 1]
    assert path_to(markets([0.4, 0.9, 0.9]).propose(8), 20) == [20]
    assert path_to(markets([0.9, 0.9, 0.9]).propose(8), 23) == [11, 12, 13, 23]


def test_no_more_nodes_than_were_asked_for() -> None:
    for room in range(1, 6):
        assert len(markets([0.9, 0.8, 0.3]).propose(room)) <= room + 1


def test_what_a_chain_brings_counts_from_the_others_tokens() -> None:
    """With all that follows it; nothing is recorded of one whose path did not come."""
    for came, gained, counted in (([11, 12, 21, 31, 5], 2, 1), ([11, 9], 0, 0)):
        market = markets([0.9, 0.8, 0.3])
        tree = market.propose(8)
        path = [0]
        for token in came[:-1]:
            below = [n for n in range(len(tree)) if tree.parents[n] == path[-1]]
            path += [node for node in below if tree.tokens[node] == token]
        market.observe(StepOutcome(tree, path, came[-1], came))
        assert market.costly_step.tokens == gained
        assert market.costly_step.nodes == 2
        assert market.statistics.table[2].any() == bool(counted)


def test_a_path_longer_than_the_room_drafts_nothing() -> None:
    drafter = After(random_rows(1))
    drafter._room = lambda: 2  # type: ignore[method-assign]
    drafter.reset([1])
    assert len(drafter.propose_after(Path([4, 5, 6]), 12, Proposal(1))) == 1
