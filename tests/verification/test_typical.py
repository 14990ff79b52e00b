"""Typical acceptance follows Medusa's rule to the letter and is named lossy where it is used."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import edgespec
from edgespec.engine.request import Request
from edgespec.errors import BackendError, OptionError
from edgespec.verification.match import Verifier
from edgespec.verification.sampling import SamplingParams
from edgespec.verification.typical import DELTA, EPSILON, TypicalVerifier

VOCAB = 24


def typical(row: NDArray[np.float32], temperature: float) -> dict[int, float]:
    """Tokens that the rule accepts after a row, with their probabilities; in plain loops."""
    top = max(float(logit) for logit in row)
    weights = [math.exp((float(logit) - top) / temperature) for logit in row]
    shares = [weight / sum(weights) for weight in weights]
    entropy = -sum(share * math.log(share) for share in shares if share)
    bar = min(EPSILON, DELTA * math.exp(-entropy))
    return {token: share for token, share in enumerate(shares) if share > bar}


@st.composite
def trees(draw: st.DrawFn) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    num_nodes = draw(st.integers(1, 9))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, num_nodes))]
    tokens = [draw(st.integers(0, VOCAB - 1)) for _ in parents]
    return np.array(tokens, np.int32), np.array(parents, np.int16)


@given(
    trees(),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([0.5, 3.0, 9.0]),
)
def test_the_longest_typical_path(
    tree: tuple[NDArray[np.int32], NDArray[np.int16]], seed: int, temperature: float, spread: float
) -> None:
    tokens, parents = tree
    logits = np.random.default_rng(seed).normal(0, spread, (len(tokens), VOCAB)).astype(np.float32)
    params = SamplingParams(temperature=temperature, seed=seed)
    path, bonus = TypicalVerifier(VOCAB, params, 16).verify(logits, tokens, parents, [1], 5)

    found = {0: (1, 0.0)}  # accepted nodes: length and log-probability of their paths
    for node in range(1, len(tokens)):
        accepted = typical(logits[parents[node]], temperature)
        if parents[node] in found and int(tokens[node]) in accepted:
            length, score = found[int(parents[node])]
            found[node] = length + 1, score + math.log(accepted[int(tokens[node])])
    assert all(parents[child] == parent for parent, child in zip(path, path[1:], strict=False))
    assert set(path) <= set(found)
    longest, best = max(found.values())
    assert len(path) == longest
    assert found[path[-1]][1] == pytest.approx(best, abs=1e-3)
    alone = Verifier(VOCAB, params, 16).sample(logits[path[-1]], [1], 5 + len(path) - 1)
    assert bonus == alone, "the token after the path is the one plain sampling draws there"


def test_not_a_number_is_an_error() -> None:
    logits = np.full((2, VOCAB), np.nan, np.float32)
    verifier = TypicalVerifier(VOCAB, SamplingParams(temperature=1.0), 4)
    with pytest.raises(BackendError, match="position 7"):
        verifier.verify(
            logits, np.array([1, 2], np.int32), np.array([-1, 0], np.int16), [1], 7
        )  # fmt: skip


def test_unlikely_tokens_may_be_left_out_entirely() -> None:
    logits = np.full((2, VOCAB), -np.inf, np.float32)
    logits[:, 3] = 0.0
    verifier = TypicalVerifier(VOCAB, SamplingParams(temperature=1.0), 4)
    verdict = verifier.verify(
        logits, np.array([1, 3], np.int32), np.array([-1, 0], np.int16), [1], 0
    )
    assert verdict.path == [0, 1]


def test_only_what_may_change_the_text_is_lossy() -> None:
    def lossy(temperature: float, **options: object) -> bool:
        sampling = SamplingParams(temperature=temperature)
        return Request((1,), sampling, accept="typical", **options).lossy  # type: ignore[arg-type]

    assert lossy(0.8)
    assert not lossy(0.0)
    assert not lossy(0.8, speculation=False)
    assert not Request((1,), SamplingParams(temperature=0.8)).lossy
    with pytest.raises(OptionError, match="penalty"):
        Request((1,), SamplingParams(repetition_penalty=1.1), accept="typical")
    with pytest.raises(OptionError, match="exact or typical"):
        Request((1,), SamplingParams(), accept="sloppy")


def test_a_reply_says_that_it_is_lossy() -> None:
    prompt = "one two three one two three one two"
    with edgespec.load(backend="native", memory="4GiB", threads=1) as engine:
        exact = engine.generate(prompt, max_tokens=48, seed=3, raw=True)
        again = engine.generate(prompt, max_tokens=48, seed=3, raw=True, speculation=False)
        typical = engine.generate(prompt, max_tokens=48, seed=3, raw=True, accept="typical")
    assert exact.text == again.text
    assert not exact.stats.lossy
    assert typical.stats.lossy
