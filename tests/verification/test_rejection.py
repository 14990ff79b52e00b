from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import naive_rejection
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import floats, pairs_of_laws
from numba import config
from numpy.typing import NDArray
from rows_of_logits import make_rows
from sampled_drafts import (
    DRAFT,
    LOGITS,
    ROOT,
    TARGET,
    bound,
    distance,
    exact_pairs,
    texts,
    without_replacement,
)

from edgespec.verification.rejection import k_seq, one_draft, recursive, rejection_verifier
from edgespec.verification.sampling import SamplingParams

SAMPLES = 500 if config.DISABLE_JIT else 8000
SHAPES = [
    pytest.param((1, 1), False, id="chain"),
    pytest.param((3, 2), False, id="recursive"),
    pytest.param((3, 2), True, id="k-SEQ"),
]


@pytest.mark.parametrize("shape, replacement", SHAPES)
def test_the_distance_from_the_target_shrinks_with_samples(
    shape: tuple[int, int], replacement: bool
) -> None:
    exact = exact_pairs(LOGITS)
    for num_samples in (SAMPLES // 16, SAMPLES // 4, SAMPLES):
        counts, _ = texts(LOGITS, DRAFT, shape, num_samples, replacement=replacement)
        assert distance(counts, exact) < bound(num_samples, exact)
        first = exact.sum(1)
        assert distance(counts.sum(1), first) < bound(num_samples, first)


RESIDUAL = "target[i] - draft[i] / draft_sum"
MUTATIONS = {
    "chain: residual p": ("accept_recursive", (1, 1), RESIDUAL, "target[i]"),
    "chain: accepted with p": ("accept_recursive", (1, 1), "luck * drawn <", "luck <"),
    "recursive: residual p": ("accept_recursive", (3, 2), RESIDUAL, "target[i]"),
    "recursive: not normalised": ("accept_recursive", (3, 2), "target[i] /= total", "pass"),
    "recursive: q as at first": ("accept_recursive", (3, 2), "rest -= drawn[i]", "pass"),
    "k-SEQ: residual p": ("accept_k_seq", (3, 2), "target[i] - taken", "target[i]"),
    "k-SEQ: residual of one sibling": ("accept_k_seq", (3, 2), "rho) * expected", "rho)"),
    "k-SEQ: rho 1": ("accept_k_seq", (3, 2), "smallest_rho(target, draft, n", "min(1.0, n"),
}


def mutated(name: str, old: str, new: str) -> Callable[..., int]:
    """A sampler, uncompiled, in whose sources `old` is `new`."""
    space: dict[str, Any] = {
        "kernel": lambda *_, **__: lambda function: function,
        "uniform": naive_rejection.uniform,
    }
    found = 0
    for module in (one_draft, recursive, k_seq):
        source = re.sub(r"from edgespec.*", "", inspect.getsource(module))
        found += source.count(old)
        exec(source.replace(old, new), space)
    assert found == 1, f"{old!r} occurs {found} times"
    rule: Callable[..., int] = space[name]
    return rule


@pytest.mark.parametrize("unchanged", [True, False], ids=["unchanged", "changed"])
@pytest.mark.parametrize("name, shape, old, new", MUTATIONS.values(), ids=MUTATIONS)
def test_a_wrong_sampler_is_noticed(
    name: str,
    shape: tuple[int, int],
    old: str,
    new: str,
    unchanged: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check that sound sources pass, also when they are read in this way."""
    monkeypatch.setattr(rejection_verifier, name, mutated(name, old, old if unchanged else new))
    exact = exact_pairs(LOGITS)
    counts, _ = texts(LOGITS, DRAFT, shape, 2000, replacement=name == "accept_k_seq")
    assert (distance(counts, exact) < bound(2000, exact)) == unchanged


def test_a_drafter_that_hides_its_unlikely_drafts_is_noticed() -> None:
    """Whether a draft is kept must not depend on the draft: this one keeps the likely ones."""
    exact = exact_pairs(LOGITS)

    def hiding(probs: NDArray[np.float64], count: int, position: int) -> list[int]:
        drafts = without_replacement(probs, count, position)
        return [token for token in drafts if probs[token] > 0.2]

    counts, _ = texts(LOGITS, DRAFT, (1, 1), SAMPLES, draw=hiding)
    assert distance(counts, exact) > bound(SAMPLES, exact)


def test_noise_shared_with_the_drafter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = exact_pairs(LOGITS)
    monkeypatch.setattr(rejection_verifier, "acceptance_key", naive_rejection.position_key)
    counts, _ = texts(LOGITS, DRAFT, (1, 1), SAMPLES)
    assert distance(counts, exact) > bound(SAMPLES, exact)


@settings(max_examples=6 if config.DISABLE_JIT else 20, deadline=None, derandomize=True)
@given(data=st.data(), replacement=st.booleans(), shape=st.sampled_from([(1, 1), (2, 2), (5, 1)]))
def test_any_target_and_drafter_make_the_targets_text(
    data: st.DataObject, replacement: bool, shape: tuple[int, int]
) -> None:
    both = [data.draw(pairs_of_laws) for _ in range(4)]
    target, draft = (np.array([floats(law) for law in laws]) for laws in zip(*both, strict=True))
    with np.errstate(divide="ignore"):
        logits = np.log(target).astype(np.float32)
    exact = exact_pairs(logits)
    counts, _ = texts(logits, draft, shape, 500, replacement=replacement)
    assert counts[exact == 0].sum() == 0
    assert distance(counts, exact) < bound(500, exact, 1e-9)


@pytest.mark.parametrize("shape, replacement", SHAPES)
def test_drafts_are_accepted_as_often_as_theory_says(
    shape: tuple[int, int], replacement: bool
) -> None:
    target, draft = ([Fraction(round(20 * p), 20) for p in row[ROOT]] for row in (TARGET, DRAFT))
    rule = naive_rejection.recursive
    if replacement:
        rho = k_seq.smallest_rho(floats(target), floats(draft), shape[0])
        rule = naive_rejection.k_seq(Fraction(rho))
    _, expected = naive_rejection.emitted(target, draft, shape[0], rule, replacement)
    _, accepted = texts(LOGITS, DRAFT, shape, SAMPLES, replacement=replacement)
    assert abs(accepted - expected) < math.sqrt(math.log(2e6) / (2 * SAMPLES))  # Hoeffding, 1e-6


@pytest.mark.parametrize("shape, replacement", SHAPES)
def test_every_draft_of_the_target_itself_is_accepted(
    shape: tuple[int, int], replacement: bool
) -> None:
    probs = np.exp(LOGITS.astype(np.float64))
    probs /= probs.sum(1, keepdims=True)
    _, accepted = texts(LOGITS, probs, shape, 500, replacement=replacement)
    assert accepted == 1.0


SAMPLING = [
    SamplingParams(temperature=0.0, seed=1),
    SamplingParams(temperature=0.6, top_k=3, top_p=1.0, min_p=0.0, seed=2),
    SamplingParams(temperature=1.3, top_k=0, top_p=0.75, min_p=0.0, seed=3),
    SamplingParams(temperature=0.9, top_k=0, top_p=1.0, min_p=0.25, seed=4),
    SamplingParams(
        temperature=1.0, top_k=4, top_p=0.95, min_p=0.05, repetition_penalty=1.7, seed=5
    ),
]


@pytest.mark.parametrize("replacement", [False, True], ids=["recursive", "k-SEQ"])
@pytest.mark.parametrize("params", SAMPLING, ids=lambda params: f"seed {params.seed}")
def test_the_whole_sampling_chain_shapes_the_target(
    params: SamplingParams, replacement: bool
) -> None:
    logits = make_rows("normal", 4, 4, 3) / 2
    exact = exact_pairs(logits, params)
    num_samples = SAMPLES // 4
    counts, _ = texts(logits, DRAFT, (3, 2), num_samples, replacement=replacement, params=params)
    assert counts[exact == 0].sum() == 0
    assert distance(counts, exact) < bound(num_samples, exact)
