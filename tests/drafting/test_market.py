"""The market against a plain merge of prefixes, and what it learns about its sources."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter
from edgespec.drafting.market.acceptance import AcceptanceStatistics, record_tree
from edgespec.drafting.market.market import Market
from edgespec.drafting.market.step import LONGEST_SILENCE, PATIENCE
from edgespec.drafting.tree import DraftTree, StepOutcome

ROOT = 3
Prefix = tuple[int, ...]


class Scripted(Drafter):
    """Proposes what it was given and counts how often it was asked."""

    size_bytes = 0

    def __init__(self, name: str, tree: DraftTree | None = None) -> None:
        self.name = name
        self.tree = tree or DraftTree.root(ROOT)
        self.asked = 0
        self.text: list[int] = []

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.text = [int(token) for token in tokens]

    def extend(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)

    def propose(self, max_nodes: int) -> DraftTree:
        self.asked += 1
        return self.tree.take(max_nodes + 1)


def timed(drafters: Sequence[Drafter]) -> Market:
    """A market for whom every reading of the clock takes a microsecond, so that a stall of the
    machine is on nobody's bill.
    """
    return Market(drafters, clock=itertools.count(0.0, 1e-6).__next__)


def step(market: Market, *tokens: int) -> None:
    """What a step of decoding asks of a market in which nothing was verified."""
    market.propose(4)
    market.observe(StepOutcome(DraftTree.root(ROOT), [0], tokens[-1], list(tokens)))
    market.take_seconds()


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Up to 12 nodes with few different tokens, so that proposals overlap; siblings differ."""
    tokens, parents, scores = [ROOT], [-1], [1.0]
    taken = set[tuple[int, int]]()
    for _ in range(draw(st.integers(0, 12))):
        parent, token = draw(st.integers(0, len(tokens) - 1)), draw(st.integers(0, 3))
        if (parent, token) not in taken:
            taken.add((parent, token))
            tokens.append(token)
            parents.append(parent)
            scores.append(draw(st.floats(0.0, 1.0)))
    return DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int16),
        np.array(scores, np.float32),
        np.array([0] + [1] * (len(tokens) - 1), np.uint8),
    )


def prefixes(tree: DraftTree) -> list[Prefix]:
    """Tokens from below the root to each node."""
    found: list[Prefix] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        found.append((*found[parent], int(token)))
    return found


def naive(proposals: list[DraftTree]) -> dict[Prefix, float]:
    """Path probabilities of all prefixes, nothing being known about the sources."""
    statistics = AcceptanceStatistics()
    votes: dict[Prefix, list[float]] = {}
    for source, tree in enumerate(proposals, 1):
        for prefix, score in list(zip(prefixes(tree), tree.p_accept, strict=True))[1:]:
            own = statistics.p_accept(source, float(score), len(prefix))
            votes.setdefault(prefix, []).append(own)
    own_p: dict[Prefix, float] = {}
    for prefix, chances in votes.items():
        own_p[prefix] = max(chances)
        if len(chances) > 1:
            own_p[prefix] = statistics.p_accept(0, max(chances), len(prefix))
    path_p: dict[Prefix, float] = {(): 1.0}
    for prefix in sorted(own_p, key=len):
        siblings = sum(p for other, p in own_p.items() if other[:-1] == prefix[:-1])
        scale = min(1.0, 0.999 / siblings)
        path_p[prefix] = path_p[prefix[:-1]] * own_p[prefix] * scale
    return path_p


@settings(deadline=None)
@given(st.lists(trees(), max_size=5), st.integers(1, 40))
def test_equal_prefixes_are_one_node(proposals: list[DraftTree], max_nodes: int) -> None:
    """The surest nodes, in falling order of their paths, with the naive probabilities."""
    market = timed([Scripted(str(i), tree) for i, tree in enumerate(proposals)])
    market.reset([ROOT])
    merged = market.propose(max_nodes)
    expected = naive([tree.take(max_nodes + 1) for tree in proposals])
    found = prefixes(merged)
    assert len(set(found)) == len(found) == min(len(expected), max_nodes + 1)
    paths = [1.0]
    for node in range(1, len(merged)):
        assert 0 <= merged.parents[node] < node
        paths.append(paths[merged.parents[node]] * float(merged.p_accept[node]))
    np.testing.assert_allclose(paths, [expected[prefix] for prefix in found], rtol=1e-5)
    assert all(
        later <= earlier * (1 + 1e-6) for earlier, later in zip(paths, paths[1:], strict=False)
    )
    best = sorted(expected.values(), reverse=True)[: len(found)]
    np.testing.assert_allclose(sorted(paths, reverse=True), best, rtol=1e-5)


def test_scores_become_observed_rates() -> None:
    """Who promises 0.85 and keeps 0.4 is believed to keep 0.4; others are not touched."""
    market = timed([Scripted("one", DraftTree.chain(ROOT, [7], [0.85], 1)), Scripted("other")])
    market.reset([ROOT])
    rng = np.random.default_rng(3)
    for _ in range(400):
        token = 7 if rng.random() < 0.4 else 8
        step(market, token)
    assert market.propose(4).p_accept[1] == pytest.approx(0.4, abs=0.2)
    assert market.statistics.p_accept(2, 0.85, 1) == pytest.approx(0.85)


def test_scores_keep_their_order_where_they_are_all_too_high() -> None:
    statistics = AcceptanceStatistics()
    tree, tokens = DraftTree.chain(ROOT, [7], [0.38], 1), np.array([8], np.int32)
    for _ in range(200):
        record_tree(statistics.table, 1, tree.tokens, tree.parents, tree.p_accept, tokens, 0, True)
    low, high = (statistics.p_accept(1, score, 1) for score in (0.31, 0.39))
    assert 0.001 < low < high < 0.05


def test_agreement_is_learnt_too() -> None:
    """Two that agree when they are right are surer together, and two of a kind are not.

    The other one knows a second token, or else it would fall silent for bringing nothing.
    """
    right, wrong = (DraftTree.chain(ROOT, [token, 5], [0.5, 0.5], 1) for token in (7, 9))
    for always_agree in (False, True):
        one, other = Scripted("one", right.take(2)), Scripted("other", right)
        market = timed([one, other])
        market.reset([ROOT])
        assert market.propose(4).p_accept[1] == pytest.approx(0.5)
        rng = np.random.default_rng(4)
        for _ in range(300):
            token = 7 if rng.random() < 0.5 else 8
            other.tree = right if token == 7 or always_agree else wrong
            step(market, token, 5)
        other.tree = right
        expected = 0.5 if always_agree else 0.97
        assert market.propose(4).p_accept[1] == pytest.approx(expected, abs=0.15)


def test_a_useless_drafter_is_asked_less_and_comes_back() -> None:
    """By steps and tokens alone: what a call costs is not looked at."""
    useless = Scripted("useless", DraftTree.chain(ROOT, [9], [0.5], 1))
    market = timed([useless])
    market.reset([ROOT])
    for _ in range(PATIENCE):
        step(market, 8)
    assert useless.asked == PATIENCE
    for _ in range(200):
        step(market, 8)
    before = useless.asked
    assert before - PATIENCE < 200 // LONGEST_SILENCE
    for _ in range(60):
        step(market, 9)
    assert useless.asked - before >= 60 - LONGEST_SILENCE
    market.reset([ROOT])
    market.propose(4)
    assert useless.asked - before > 60 - LONGEST_SILENCE


def test_stores_see_all_text_in_order() -> None:
    """Also what came while a drafter was not asked."""
    first, second = Scripted("first"), Scripted("second")
    market = timed([first, second])
    market.reset([ROOT, 4])
    text = [ROOT, 4]
    for step in range(1000):
        market.extend([step, step + 1])
        text += [step, step + 1]
    market.propose(1)
    assert first.text == second.text == text
    assert market.propose(1).tokens[0] == 1000


def test_sources_are_named_and_timed() -> None:
    market = timed([Scripted("a", DraftTree.chain(ROOT, [5, 6], [0.9, 0.9], 1)), Scripted("b")])
    assert market.names == ("root", "a", "b")
    market.reset([ROOT])
    assert market.propose(4).sources.tolist() == [0, 1, 1]
    assert set(market.take_seconds()) == {"a", "b"}
    assert market.take_seconds() == {}


def test_without_drafters_nothing_is_proposed() -> None:
    market = timed([])
    market.reset([5, 6])
    assert market.propose(8).tokens.tolist() == [6]
    market.extend([9])
    assert market.propose(8).tokens.tolist() == [9]
