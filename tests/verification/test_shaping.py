"""Sampling controls against their definitions, spelled out in loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.verification.match import Verifier
from edgespec.verification.noise import gumbel_noise
from edgespec.verification.sampling import SamplingParams
from edgespec.verification.shaped_verifier import ShapedVerifier
from edgespec.verification.shaping import Shaping

VOCAB = 200
NO_TOKEN = 2**31


def naive(
    row: Sequence[float], text: Sequence[int], position: int, params: SamplingParams, by: Shaping
) -> int:
    """The token after a position, by the definitions."""
    logits = [float(np.float32(value)) for value in row]
    for token, bias in by.logit_bias:
        logits[token] = float(np.float32(logits[token]) + np.float32(bias))
    window = list(text[-params.repetition_window :]) if params.repetition_window else []
    for token in set(window):
        logit = np.float32(logits[token])
        penalty = np.float32(params.repetition_penalty)
        logit = logit / penalty if logit > 0 else logit * penalty
        taken = window.count(token) * by.frequency_penalty + by.presence_penalty
        logits[token] = float(np.float32(logit) - np.float32(taken))
    if by.dry_multiplier:
        for token in range(VOCAB):
            length = longest_repetition([*text, token])
            if length >= by.dry_allowed_length:
                less = by.dry_multiplier * by.dry_base ** (length - by.dry_allowed_length)
                logits[token] = float(np.float32(logits[token]) - np.float32(less))
    order = sorted(range(VOCAB), key=lambda token: (-logits[token], token))
    if params.greedy:
        return order[0]
    if by.top_n_sigma:
        cut = max(logits) - by.top_n_sigma * float(np.std(logits))
        order = [token for token in order if logits[token] >= cut]
    if params.top_k:
        order = order[: params.top_k]

    def shares(tokens: list[int]) -> dict[int, float]:
        weights = {token: math.exp(logits[token] - logits[tokens[0]]) for token in tokens}
        total = sum(weights.values())
        return {token: weight / total for token, weight in weights.items()}

    if by.typical_p < 1:
        share = shares(order)
        entropy = -sum(p * math.log(p) for p in share.values())
        near = sorted(order, key=lambda token: abs(-math.log(share[token]) - entropy))
        kept, mass = set(), 0.0
        for token in near:
            kept.add(token)
            mass += share[token]
            if mass >= by.typical_p:
                break
        order = [token for token in order if token in kept]
    share, mass, kept_order = shares(order), 0.0, []
    for token in order:
        kept_order.append(token)
        mass += share[token]
        if params.top_p < 1 and mass >= params.top_p:
            break
    best = logits[kept_order[0]]
    order = [token for token in kept_order if math.exp(logits[token] - best) >= params.min_p]
    dice = math.exp(-math.exp(-gumbel_noise(params.seed, position + 1, [NO_TOKEN])[0]))
    if dice < by.xtc_probability:
        likely = [token for token in order if shares(order)[token] >= by.xtc_threshold]
        order = order[max(len(likely) - 1, 0) :]
    noise = gumbel_noise(params.seed, position + 1, order)
    scores = [logits[token] / params.temperature for token in order] + noise
    return order[int(np.argmax(scores))]


def longest_repetition(text: list[int]) -> int:
    """How long the longest earlier copy of the text before its last token is that this token
    follows too.
    """
    token, before = text[-1], text[:-1]
    if token % 10 == 0:  # the breakers of these tests
        return 0
    longest = 0
    for place in range(len(before) - 1):
        if before[place + 1] != token:
            continue
        length = 0
        while (
            length <= place
            and before[place - length] == before[len(before) - 1 - length]
            and before[place - length] % 10
        ):
            length += 1
        longest = max(longest, length)
    return min(longest, 50)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": ({}, {"logit_bias": ((3, 2.0), (50, -100.0))}),
    "penalties": (
        {"repetition_penalty": 1.3, "repetition_window": 12},
        {"frequency_penalty": 0.4, "presence_penalty": 0.3},
    ),
    "greedy penalties": ({"temperature": 0.0}, {"frequency_penalty": 2.0, "typical_p": 0.5}),
    "dry": ({}, {"dry_multiplier": 0.8, "dry_allowed_length": 1}),
    "dry of longer": ({}, {"dry_multiplier": 2.0, "dry_base": 1.5}),
    "sigma": ({"top_k": 0}, {"top_n_sigma": 1.2}),
    "typical": ({}, {"typical_p": 0.6}),
    "typical of all": ({"top_k": 0, "top_p": 0.9, "min_p": 0.02}, {"typical_p": 0.8}),
    "xtc": ({"min_p": 0.0}, {"xtc_probability": 1.0, "xtc_threshold": 0.05}),
    "xtc at times": ({"top_k": 10}, {"xtc_probability": 0.4, "xtc_threshold": 0.1}),
    "everything": (
        {"repetition_penalty": 1.1, "top_k": 30},
        {
            "logit_bias": ((9, 1.0),), "frequency_penalty": 0.1, "dry_multiplier": 0.5,
            "top_n_sigma": 3.0, "typical_p": 0.9, "xtc_probability": 0.5,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_token_is_that_of_the_definition(name: str) -> None:
    drawn, shaped = CASES[name]
    rng = np.random.default_rng(7)
    shaping = Shaping(**shaped)
    for seed in range(40):
        params = SamplingParams(**({"temperature": 1.1, "seed": seed} | drawn))
        verifier = ShapedVerifier(
            VOCAB, params, 4, shaping, lambda token: b"\n" if token % 10 == 0 else b"x"
        )
        row = rng.normal(0, 2, VOCAB).astype(np.float32)
        text = rng.integers(0, 8, 30).tolist()
        before = row.copy()
        assert verifier.sample(row, text, 30) == naive(row, text, 30, params, shaping)
        assert np.array_equal(row, before)


@pytest.mark.parametrize("name", CASES)
def test_a_tree_gives_what_its_path_gives_step_by_step(name: str) -> None:
    drawn, shaped = CASES[name]
    rng = np.random.default_rng(3)
    accepted = 0
    for seed in range(30):
        params = SamplingParams(**({"temperature": 1.0, "seed": seed} | drawn))
        verifier = ShapedVerifier(VOCAB, params, 8, Shaping(**shaped), lambda _: b"x")
        rows = rng.normal(0, 3, (8, VOCAB)).astype(np.float32)
        text, node, path = rng.integers(0, 8, 20).tolist(), 0, [0]
        tokens, parents = np.zeros(8, np.int32), np.full(8, -1, np.int16)
        tokens[0] = text[-1]
        expected, free = list(text), 1
        while True:
            token = verifier.sample(rows[node], expected, 19 + len(path) - 1)
            expected.append(token)
            if free > 6 or (len(path) > 1 and rng.random() < 0.3):
                break
            parents[free], tokens[free] = node, (token + 1) % VOCAB  # a wrong one first
            parents[free + 1], tokens[free + 1] = node, token
            node, free = free + 1, free + 2
            path.append(node)
        found = verifier.verify(rows[:free], tokens[:free], parents[:free], text, 19)
        assert found == (path, expected[-1])
        accepted += len(path) - 1
    assert accepted > 20


def test_controls_at_rest_are_the_kernels_own_way() -> None:
    rng = np.random.default_rng(5)
    for seed in range(20):
        params = SamplingParams(temperature=0.9, seed=seed, repetition_penalty=1.2)
        row, text = rng.normal(0, 3, VOCAB).astype(np.float32), rng.integers(0, 50, 40).tolist()
        plain = Verifier(VOCAB, params, 4).sample(row, text, 40)
        shaped = ShapedVerifier(VOCAB, params, 4, Shaping(), lambda _: b"x")
        assert shaped.sample(row, text, 40) == plain
