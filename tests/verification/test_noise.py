from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.verification.match import Verifier
from edgespec.verification.noise import gumbel_noise
from edgespec.verification.noise import gumbel_noise as published
from edgespec.verification.sampling import SamplingParams

NUM_BINS = 32
CRITICAL_31 = 72.0
"""A chi-square of 31 degrees of freedom is larger once in 20,000 times."""


def uniforms(seed: int, positions: range, tokens: range) -> NDArray[np.float64]:
    """[positions, tokens] numbers in (0, 1), recovered from the Gumbel noise."""
    rows = [
        gumbel_noise(seed, position, np.arange(len(tokens)) + tokens.start)
        for position in positions
    ]
    return np.exp(-np.exp(-np.array(rows)))


def chi_square(values: NDArray[np.float64]) -> float:
    counts = np.histogram(values, NUM_BINS, (0.0, 1.0))[0]
    expected = values.size / NUM_BINS
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_hash_is_splitmix64() -> None:
    # The reference implementation's first output for seed 0.
    assert naive.mix(naive.GAMMA) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_noise_equals_the_oracle(seed: int) -> None:
    tokens = [0, 1, 2, 31, 50_000, 2**31 - 1]
    for position in (0, 1, 131_072):
        expected = [naive.gumbel(seed, position, token) for token in tokens]
        np.testing.assert_array_equal(published(seed, position, tokens), expected)


@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize(
    "positions, tokens",
    [(range(1), range(20_000)), (range(2_000), range(5, 6)), (range(100), range(100))],
    ids=["over tokens", "over positions", "over both"],
)
def test_noise_is_uniform(seed: int, positions: range, tokens: range) -> None:
    values = uniforms(seed, positions, tokens)
    assert values.min() > 0.0 and values.max() < 1.0
    assert chi_square(values) < CRITICAL_31


@pytest.mark.parametrize("axis", [0, 1], ids=["positions", "tokens"])
@pytest.mark.parametrize("lag", [1, 2, 64])
def test_neighbours_are_independent(axis: int, lag: int) -> None:
    values = uniforms(7, range(150), range(150))
    first = np.delete(values, np.s_[-lag:], axis)
    second = np.delete(values, np.s_[:lag], axis)
    correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
    assert abs(correlation) < 4.0 / math.sqrt(first.size)
    # Sums modulo 1 of independent uniforms are uniform: a test of more than correlation.
    assert chi_square((first + second) % 1.0) < CRITICAL_31


def test_neighbouring_seeds_are_independent() -> None:
    first, second = (uniforms(seed, range(100), range(100)) for seed in (1, 2))
    assert chi_square((first - second) % 1.0) < CRITICAL_31


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 6])
def test_frequencies_are_the_softmaxs(temperature: float, top_k: int) -> None:
    logits = np.array([2.0, 1.5, 1.0, 0.0, -0.5, 0.7, -3.0, 1.9], np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=1.0, min_p=0.0, seed=11)
    verifier = Verifier(8, params, 1)
    num_samples = 4000
    counts = np.zeros(8)
    for position in range(num_samples):
        counts[verifier.sample(logits, [0], position)] += 1
    weights = np.exp(logits.astype(np.float64) / temperature)
    weights[np.argsort(-logits)[top_k or 8 :]] = 0.0
    expected = num_samples * weights / weights.sum()
    kept = expected > 0
    assert counts[~kept].sum() == 0
    statistic = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    assert statistic < 30.0  # 7 degrees of freedom: larger once in 10,000 times
