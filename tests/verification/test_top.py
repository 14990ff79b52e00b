from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.verification.top import top_tokens


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 300)),
    k=st.integers(1, 9),
    levels=st.sampled_from([2, 10, 10_000]),
)
def test_the_best_of_each_row_come_first(
    seed: int, shape: tuple[int, int], k: int, levels: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.integers(-levels, levels, shape) / 7).astype(np.float32)
    tokens, values = top_tokens(logits, k)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(logits, expected, axis=1))


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_whatever_the_logits_hold_the_tokens_exist(value: float) -> None:
    logits = np.full((2, 80), value, np.float32)
    logits[1, 70] = 1.0
    tokens, _ = top_tokens(logits, 4)
    assert np.all((tokens >= 0) & (tokens < 80))
    assert all(len(set(row)) == 4 for row in tokens.tolist())


def test_rows_with_gaps_between_them() -> None:
    whole = np.random.default_rng(1).normal(size=(3, 128)).astype(np.float32)
    tokens, _ = top_tokens(whole[:, :100], 5)
    np.testing.assert_array_equal(tokens, np.argsort(-whole[:, :100], axis=1)[:, :5])
