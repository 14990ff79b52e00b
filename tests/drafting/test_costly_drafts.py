"""What a costly drafter's proposal is said to have brought: the step less the step without it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.drafting.base import Drafter
from edgespec.drafting.market.account import OPENING
from edgespec.drafting.market.costly import num_right, worth_verifying
from edgespec.drafting.market.market import Market
from edgespec.drafting.tree import DraftTree, StepOutcome

TAKES, NODE = 0.3, 0.2
"""What a costly proposal and a node of a pass take, in plain passes."""


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Trees of tokens 0 to 2, siblings different."""
    parents, tokens = [-1], [0]
    for node in range(1, draw(st.integers(1, 8))):
        parent = draw(st.integers(0, node - 1))
        used = {tokens[other] for other in range(1, node) if parents[other] == parent}
        if len(used) < 3:
            parents.append(parent)
            tokens.append(draw(st.sampled_from(sorted({0, 1, 2} - used))))
        else:
            break
    chances = [1.0, *(draw(st.floats(0.01, 0.99)) for _ in parents[1:])]
    size = len(parents)
    return DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int16),
        np.array(chances, np.float32),
        np.ones(size, np.uint8),
    )


def path_to(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node > 0:
        path.insert(0, node)
        node = int(tree.parents[node])
    return path


@given(trees(), st.lists(st.floats(0.0, 0.5), min_size=8, max_size=8))
def test_as_many_nodes_are_worth_verifying_as_bring_most_tokens_a_second(
    tree: DraftTree, more: list[float]
) -> None:
    prices = np.cumsum([1.0, *more])
    chances = [
        np.prod([float(tree.p_accept[each]) for each in path_to(tree, node)])
        for node in range(len(tree))
    ]
    rates = [sum(chances[:count]) / prices[count - 1] for count in range(1, len(tree) + 1)]
    assert rates[worth_verifying(tree, prices) - 1] == pytest.approx(max(rates))


def test_without_prices_nothing_is_worth_verifying() -> None:
    assert worth_verifying(DraftTree.chain(0, [1], [0.9], 1), np.empty(0)) == 1


@given(trees(), st.lists(st.integers(0, 2), max_size=6))
def test_tokens_are_right_that_some_path_begins_with(tree: DraftTree, came: list[int]) -> None:
    paths = [[int(tree.tokens[each]) for each in path_to(tree, node)] for node in range(len(tree))]
    found = itertools.takewhile(lambda count: came[:count] in paths, range(len(came) + 1))
    assert num_right(tree, came) == max(found)


class Says(Drafter):
    """Says one token, and how sure it is."""

    size_bytes = 0

    def __init__(self, name: str, token: int, sure: float, *, clock: list[float] | None) -> None:
        self.name, self.token, self.sure = name, token, sure
        self.clock, self.costly = clock, clock is not None

    def reset(self, tokens: object) -> None: ...

    def extend(self, tokens: object) -> None: ...

    def propose(self, max_nodes: int) -> DraftTree:
        if self.clock is not None:
            self.clock[0] += TAKES
        return DraftTree.chain(0, [self.token], [self.sure], 1)


@pytest.mark.parametrize(("sure", "lost"), [(0.01, 0.0), (0.9, 1.0)])
def test_a_right_token_counts_as_displaced_if_it_would_have_been_verified(
    sure: float, lost: float
) -> None:
    clock = [0.0]
    free, costly = Says("free", 1, sure, clock=None), Says("costly", 2, 0.95, clock=clock)
    market = Market([free, costly], clock=lambda: clock[0])
    market._prices, market.token_s = 1.0 + NODE * np.arange(8.0), 1.0
    market.reset([0])
    market.propose(1)
    verified = DraftTree.chain(0, [2], [0.95], 2)  # the free one's token came, and was not in it
    market.observe(StepOutcome(verified, [0], 1, [1]))
    (source,) = (one for one in market._sources if one.account)
    assert source.account is not None
    instead = NODE * (lost == 0.0)  # with the free token in its place, the pass is as long
    assert source.account.balance == pytest.approx(OPENING - TAKES - lost - instead)
    assert market.costly_step.tokens == -lost
    assert market.costly_step.others_right
