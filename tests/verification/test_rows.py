from __future__ import annotations

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_of_logits import KINDS, make_rows, maxima_of

from edgespec.errors import BackendError
from edgespec.verification.match import Verifier, find_maxima, verify
from edgespec.verification.noise import gumbel_noise
from edgespec.verification.sampling import SamplingParams

ROOT = np.zeros(1, np.int32)
NO_PARENT = np.full(1, -1, np.int16)


def test_a_target_may_write_its_rows_where_they_were() -> None:
    """Arrays that come again hold other numbers; those that are read-only are copied each time."""
    logits, verifier = np.zeros((2, 40), np.float32), Verifier(40, SamplingParams(temperature=0), 1)
    for read_only in (False, True):
        row = logits[:1]
        row.flags.writeable = not read_only
        maxima = np.zeros((1, 3), np.float32)
        for token in (3, 39, 17):
            logits[0] = 0.0
            logits[0, token] = 1.0
            maxima[:] = find_maxima(logits[:1])
            for told in (maxima, None):
                assert verifier.verify(row, ROOT, NO_PARENT, (), 0, told) == ([0], token)


params_of_any_kind = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.2, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 1000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.8, 1.1, 3.0]),
    repetition_window=st.integers(0, 20),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=250, deadline=None)
@given(
    params=params_of_any_kind,
    kind=st.sampled_from(KINDS),
    vocab_size=st.sampled_from([1, 2, 15, 16, 17, 65, 200, 600, 1040]),
    seed=st.integers(0, 2**32),
    position=st.integers(0, 10**6),
)
def test_a_sample_equals_the_oracles(
    params: SamplingParams, kind: str, vocab_size: int, seed: int, position: int
) -> None:
    row = make_rows(kind, 1, vocab_size, seed)[0]
    recent = np.random.default_rng(seed).integers(0, vocab_size, 30).tolist()
    token = Verifier(vocab_size, params, 1).sample(row, recent, position)
    assert token == naive.sample(row, recent, params, position)


@settings(max_examples=40, deadline=None)
@given(
    params=params_of_any_kind,
    kind=st.sampled_from(KINDS),
    vocab_size=st.sampled_from([5_000, 8_199]),
    seed=st.integers(0, 2**32),
)
def test_a_sample_of_a_large_vocabulary_equals_the_oracles(
    params: SamplingParams, kind: str, vocab_size: int, seed: int
) -> None:
    """More tiles than a block has, and more blocks than the top holds."""
    row = make_rows(kind, 1, vocab_size, seed)[0]
    verifier = Verifier(vocab_size, params, 1)
    for position in range(4):
        assert verifier.sample(row, [1, 2], position) == naive.sample(row, [1, 2], params, position)


@settings(max_examples=120, deadline=None)
@given(
    params=params_of_any_kind,
    kind=st.sampled_from(KINDS),
    vocab_size=st.sampled_from([1, 3, 8, 100]),
    num_nodes=st.integers(1, 24),
    given_maxima=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_walk_equals_the_oracles(
    params: SamplingParams,
    kind: str,
    vocab_size: int,
    num_nodes: int,
    given_maxima: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    logits = make_rows(kind, num_nodes, vocab_size, seed)
    tokens = rng.integers(0, vocab_size, num_nodes).astype(np.int32)
    parents = np.array([-1] + [rng.integers(0, i) for i in range(1, num_nodes)], np.int16)
    recent = rng.integers(0, vocab_size, rng.integers(1, 40)).tolist()
    before = logits.copy()
    maxima = maxima_of(logits) if given_maxima else None
    verifier = Verifier(vocab_size, params, num_nodes)
    verdict = verifier.verify(logits, tokens, parents, recent, 17, maxima)
    assert verdict == naive.verify(logits, tokens.tolist(), parents.tolist(), recent, params, 17)
    np.testing.assert_array_equal(logits.view(np.int32), before.view(np.int32))
    if maxima is not None:
        np.testing.assert_array_equal(maxima, maxima_of(before))


@pytest.mark.parametrize("kind", [*KINDS, "nan"])
@pytest.mark.parametrize("vocab_size", [1, 16, 100])
def test_maxima_that_are_not_given_are_found(kind: str, vocab_size: int) -> None:
    rows = make_rows("normal" if kind == "nan" else kind, 5, vocab_size, 3)
    if kind == "nan":
        rows[[1, 2], [0, -1]] = [-np.nan, np.nan]
    np.testing.assert_array_equal(find_maxima(rows), maxima_of(rows))


def test_a_row_of_which_only_the_maxima_are_read() -> None:
    """What cannot win is not looked at: it may as well not be there."""
    row = make_rows("normal", 1, 5_000, 1)
    maxima = maxima_of(row)
    shown = np.full_like(row, np.nan)
    for tile in np.argsort(-maxima[0])[:40]:
        shown[:, tile * 16 : tile * 16 + 16] = row[:, tile * 16 : tile * 16 + 16]
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, seed=4)
        verifier = Verifier(5_000, params, 1)
        token = verifier.verify(shown, ROOT, NO_PARENT, [1], 3, maxima).bonus
        assert token == naive.sample(row[0], [1], params, 3)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("bad", [np.nan, -np.nan], ids=["nan", "negative nan"])
def test_nan_is_an_error_only_where_it_is_looked_at(temperature: float, bad: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3)
    logits = make_rows("spike", 2, 300, 5)
    logits[1, 77] = bad
    tokens = np.array([1, int(logits[0].argmax())], np.int32)
    with pytest.raises(BackendError, match="logits at position 10 hold NaN"):
        verify(logits, tokens, np.array([-1, 0], np.int16), [1], params, 9)
    tokens[1] ^= 1
    assert verify(logits, tokens, np.array([-1, 0], np.int16), [1], params, 9).path == [0]


@pytest.mark.parametrize("value", [-np.inf, np.inf])
def test_a_row_without_finite_maximum_is_an_error(value: float) -> None:
    row = np.full(100, value, np.float32)
    with pytest.raises(BackendError, match="no finite maximum"):
        Verifier(100, SamplingParams(seed=1), 1).sample(row, [1], 0)


def test_greedy_takes_the_lowest_id_of_equal_logits_and_both_zeros_are_equal() -> None:
    row = np.array([-1.0, -0.0, 0.0, 0.0], np.float32)
    assert Verifier(4, SamplingParams(temperature=0), 1).sample(row, [0], 0) == 1


def test_greedy_obeys_the_repetition_penalty() -> None:
    row = np.array([1.0, 1.05], np.float32)
    params = SamplingParams(temperature=0, repetition_penalty=1.2, repetition_window=1)
    assert Verifier(2, params, 1).sample(row, [1], 0) == 0
    assert Verifier(2, params, 1).sample(row, [1, 0], 0) == 1


def test_read_only_logits_are_accepted() -> None:
    row = make_rows("normal", 1, 100, 1)
    row.setflags(write=False)
    params = SamplingParams(seed=1, repetition_penalty=1.3)
    assert verify(row, ROOT, NO_PARENT, [0], params, 3).bonus == naive.sample(
        row[0], [0], params, 3
    )


@pytest.mark.parametrize("padding", [1, 6])
def test_padded_rows_are_read_where_they_lie(padding: int) -> None:
    logits = make_rows("normal", 2, 100, 4)
    padded = np.full((2, 100 + padding), np.nan, np.float32)
    padded[:, :100] = logits
    params = SamplingParams(seed=2, repetition_penalty=1.2)
    best = verify(logits, ROOT, NO_PARENT, [5], params, 3).bonus
    tokens, parents = np.array([5, best], np.int32), np.array([-1, 0], np.int16)
    expected = verify(logits, tokens, parents, [5], params, 3)
    assert len(expected.path) == 2
    assert verify(padded[:, :100], tokens, parents, [5], params, 3) == expected
    assert verify(np.asfortranarray(logits), tokens, parents, [5], params, 3) == expected
    maxima = maxima_of(logits)
    maxima.setflags(write=False)
    verifier = Verifier(100, params, 2)
    assert verifier.verify(padded[:, :100], tokens, parents, [5], 3, maxima) == expected


def test_the_drawn_token_is_the_argmax_of_logits_and_published_noise() -> None:
    row = make_rows("normal", 1, 50, 8)[0]
    params = SamplingParams(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0, seed=99)
    noise = gumbel_noise(99, 42, np.arange(50))
    expected = int(np.argmax(row.astype(np.float64) / 0.9 + noise))
    assert Verifier(50, params, 1).sample(row, [0], 41) == expected


@pytest.mark.parametrize("top_p", [0.125, 0.25, 0.5, 0.875])
def test_the_edge_of_top_p_is_exact(top_p: float) -> None:
    """Equal probabilities add up to the line exactly: the set ends there and not one token later.

    The winner then stands where rough sums cannot tell.
    """
    params = SamplingParams(temperature=0.7, top_k=0, top_p=top_p, min_p=0.0, seed=5)
    row, verifier = np.full(40, 1.5, np.float32), Verifier(40, params, 1)
    drawn = set()
    for position in range(400):
        token = verifier.sample(row, [0], position)
        assert token == naive.sample(row, [0], params, position)
        drawn.add(token)
    assert drawn == set(range(int(40 * top_p)))


def test_shapes_that_do_not_fit_are_refused() -> None:
    verifier = Verifier(8, SamplingParams(seed=1), 2)
    for shape in [(1, 8), (2, 9)]:
        with pytest.raises(BackendError, match="verification got 2 nodes"):
            verifier.verify(
                np.zeros(shape, np.float32),
                np.zeros(2, np.int32),
                np.array([-1, 0], np.int16),
                [1],
                0,
            )


def test_maxima_that_do_not_fit_are_refused() -> None:
    logits, verifier = np.zeros((1, 17), np.float32), Verifier(17, SamplingParams(seed=1), 1)
    for shape in [(1, 1), (2, 2)]:
        with pytest.raises(BackendError, match=r"maxima of shape .* it takes 2 for each row"):
            verifier.verify(logits, ROOT, NO_PARENT, [1], 0, np.zeros(shape, np.float32))


@pytest.mark.parametrize("top_k", [0, 40, 150_000])
def test_scratch_is_small_whatever_the_vocabulary(top_k: int) -> None:
    assert Verifier(150_000, SamplingParams(top_k=top_k), 16).size_bytes < 4_000
