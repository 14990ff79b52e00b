from __future__ import annotations

from fractions import Fraction

import naive_rejection
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import floats, pairs_of_laws
from naive_rejection import Law

from edgespec.verification.rejection import k_seq, one_draft, recursive

TINY = Fraction(1, 10**9)
"""Rho is found to 1e-12; what is emitted has the target's law with any rho from there up."""


@pytest.mark.parametrize("replacement", [False, True], ids=["recursive", "k-SEQ"])
@settings(max_examples=60, deadline=None)
@given(pair=pairs_of_laws, count=st.integers(1, 4))
def test_the_oracle_is_exact(replacement: bool, pair: tuple[Law, Law], count: int) -> None:
    """What is emitted has the target's law, in fractions; drafts are accepted as theory says."""
    target, draft = pair
    num_drawn = count if replacement else min(count, sum(map(bool, draft)))
    rho = Fraction(k_seq.smallest_rho(floats(target), floats(draft), num_drawn))
    rule = naive_rejection.k_seq(rho) if replacement else naive_rejection.recursive
    law, accepted = naive_rejection.emitted(target, draft, count, rule, replacement)
    assert list(law) == list(target)
    overlap = sum(map(min, target, draft))
    if replacement:
        one = naive_rejection.beta(target, draft, rho)
        assert accepted == 1 - (1 - one) ** count
        for token, weight in enumerate(target):  # no token comes from siblings too often
            assert min(draft[token], weight / rho) * accepted <= weight * one + TINY
    assert accepted >= overlap - TINY
    if num_drawn == 1 or target == draft:
        assert abs(accepted - overlap) <= TINY


@settings(max_examples=200, deadline=None)
@given(
    pair=pairs_of_laws,
    siblings=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    key=st.integers(0, 2**64 - 1),
    replacement=st.booleans(),
)
def test_a_verdict_equals_the_oracles(
    pair: tuple[Law, Law], siblings: list[int], key: int, replacement: bool
) -> None:
    """Also for siblings of probability 0, which are what is left when there are more than tokens"""
    target, draft = pair
    if not replacement:
        siblings = list(dict.fromkeys(siblings))
    drawn = floats([draft[token] for token in siblings])
    rule, sampler = naive_rejection.recursive, recursive.accept_recursive
    if replacement:
        rho = k_seq.smallest_rho(floats(target), floats(draft), int((drawn > 0).sum()))
        rule, sampler = naive_rejection.k_seq(Fraction(rho)), k_seq.accept_k_seq
    chances, residual = rule(target, draft, siblings)
    with np.errstate(over="ignore"):
        word = np.uint64(key)
        lucky = [naive_rejection.uniform(key, i + 1) < chance for i, chance in enumerate(chances)]
        ids = [token for token, weight in enumerate(target) if weight]  # in another order, too
        ids = ids[::-1] if key % 2 else ids
        places = np.array([ids.index(x) if x in ids else -1 for x in siblings], np.int64)
        left = floats(target)[ids]
        found = sampler(left, floats(draft)[ids], places, drawn, word)
        assert found == (lucky.index(True) if True in lucky else -1)
        if found < 0 and any(residual):
            expected = floats(residual)[ids]
            np.testing.assert_allclose(left / left.sum(), expected, atol=1e-8)
            assert residual[ids[one_draft.draw(left, word)]] > 0


@settings(max_examples=60, deadline=None)
@given(pair=pairs_of_laws, num_siblings=st.integers(1, 8))
def test_rho_is_the_smallest(pair: tuple[Law, Law], num_siblings: int) -> None:
    target, draft = map(floats, pair)

    def room(rho: float) -> float:
        """rho beta - (1 - (1 - beta)**k), which must not be negative"""
        beta = np.minimum(draft, target / rho).sum()
        return float(rho * beta - (1 - (1 - beta) ** num_siblings))

    rho = k_seq.smallest_rho(target, draft, num_siblings)
    assert 1.0 <= rho <= num_siblings
    assert room(rho) > -1e-12
    assert rho == 1.0 or room(rho * (1 - 1e-6)) < 1e-12
