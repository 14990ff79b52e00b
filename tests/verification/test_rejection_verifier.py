from __future__ import annotations

import naive_rejection
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rows_of_logits import KINDS, make_rows
from sampled_drafts import DRAFT, LOGITS, PLAIN, texts

from edgespec.errors import BackendError, OptionError
from edgespec.verification.rejection.distribution import target_distribution
from edgespec.verification.rejection.rejection_verifier import RejectionVerifier
from edgespec.verification.sampling import SamplingParams


@settings(max_examples=100, deadline=None)
@given(
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 7, 1000]),
    top_p=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    penalty=st.sampled_from([1.0, 0.8, 3.0]),
    kind=st.sampled_from(KINDS),
    vocab_size=st.sampled_from([1, 2, 65, 200]),
    seed=st.integers(0, 2**32),
)
def test_the_target_is_what_plain_sampling_draws_from(
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    kind: str,
    vocab_size: int,
    seed: int,
) -> None:
    params = SamplingParams(temperature, top_k, top_p, min_p, penalty, 20, seed)
    row = make_rows(kind, 1, vocab_size, seed)[0]
    recent = np.random.default_rng(seed).integers(0, vocab_size, 30).tolist()
    tokens, probs = target_distribution(row, recent, params, 0)
    found = np.zeros(vocab_size)
    found[tokens] = probs
    assert len(tokens) <= (top_k or vocab_size)
    np.testing.assert_allclose(
        found, naive_rejection.distribution(row, recent, params), rtol=1e-9, atol=1e-15
    )


def test_chains_are_the_same_by_both_rules() -> None:
    found = [texts(LOGITS, DRAFT, (1, 1), 200, replacement=kind)[0] for kind in (False, True)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("top_k", [0, 5])
def test_listed_probabilities_are_as_good_as_whole_rows(top_k: int) -> None:
    rng = np.random.default_rng(0)
    logits = make_rows("normal", 4, 50, 1) / 4
    ids = np.argsort(-logits, 1)[:, :6][:, rng.permutation(6)]
    ids[:, 4:] = -1
    probs = rng.random((4, 6)).astype(np.float32)
    probs[:, 4:] = 0.0
    probs /= probs.sum(1, keepdims=True)
    whole = np.zeros((4, 51), np.float32)
    np.put_along_axis(whole, ids, probs, 1)
    tokens = np.array([9, ids[0, 1], ids[0, 0], 3], np.int32)  # the last is not listed
    parents = np.array([-1, 0, 0, 0], np.int16)
    params = SamplingParams(top_k=top_k, seed=7)
    verifier = RejectionVerifier(50, params)
    verdicts = []
    for position in range(200):
        verdict = verifier.verify(logits, tokens, parents, probs, [9], position, ids)
        assert verdict == verifier.verify(logits, tokens, parents, whole[:, :50], [9], position)
        verdicts.append(verdict)
    assert len({verdict.path[-1] for verdict in verdicts}) > 1


CHAIN = (np.array([0, 1], np.int32), np.array([-1, 0], np.int16))


@pytest.mark.parametrize(
    "probs, message",
    [
        (np.full((2, 4), 0.5), "sum to 2 "),
        (np.full((2, 4), np.nan), "sum to nan"),
        (np.array([[1.5, -0.5, 0, 0]] * 2), "the lowest is -0.5"),
        (np.full((2, 3), 1 / 3), r"have shape \(2, 3\); give each of the 2 nodes a row of 4"),
        (np.full((1, 4), 0.25), r"have shape \(1, 4\)"),
    ],
)
def test_probabilities_that_are_none_are_refused(probs: NDArray[np.float64], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RejectionVerifier(4, PLAIN).verify(LOGITS[:2], *CHAIN, probs, [0], 0)


def test_a_token_drawn_twice_without_replacement_is_refused() -> None:
    tokens, parents = np.array([0, 1, 1], np.int32), np.array([-1, 0, 0], np.int16)
    with pytest.raises(OptionError, match=r"hold a token twice \(\[1, 1\]\)"):
        RejectionVerifier(4, PLAIN).verify(LOGITS, tokens, parents, DRAFT, [0], 0)


def test_damaged_logits_are_an_error_where_they_are_looked_at() -> None:
    logits = LOGITS.copy()
    logits[0, 2] = np.nan
    with pytest.raises(BackendError, match="logits at position 7 hold NaN"):
        RejectionVerifier(4, PLAIN).verify(logits, *CHAIN, DRAFT, [0], 7)
    with pytest.raises(BackendError, match="position 7 hold no finite maximum"):
        RejectionVerifier(4, PLAIN).verify(LOGITS - np.inf, *CHAIN, DRAFT, [0], 7)
    with pytest.raises(BackendError, match="verification got 2 nodes and logits of shape"):
        RejectionVerifier(5, PLAIN).verify(LOGITS, *CHAIN, DRAFT, [0], 7)
