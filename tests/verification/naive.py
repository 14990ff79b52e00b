"""Sampling and acceptance in plain loops: the oracle of the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.verification.sampling import SamplingParams

WORD = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def uniform(seed: int, position: int, token: int) -> float:
    key = mix((mix((seed + GAMMA) & WORD) + (position + 1) * GAMMA) & WORD)
    bits = mix((key + (token + 1) * GAMMA) & WORD) >> 12
    return (bits + 0.5) * 2.0**-52


def gumbel(seed: int, position: int, token: int) -> float:
    return -math.log(-math.log(uniform(seed, position, token)))


def penalised(
    row: NDArray[np.float32], recent: Sequence[int], params: SamplingParams
) -> NDArray[np.float32]:
    out = row.copy()
    window = recent[-params.repetition_window :] if params.repetition_window else []
    penalty = np.float32(params.repetition_penalty)
    if penalty != 1.0:
        for token in set(window):
            out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
    return out


def candidates(row: NDArray[np.float32], params: SamplingParams) -> list[int]:
    """Tokens that survive top-k, top-p and min-p, best first."""
    ids = sorted(range(len(row)), key=lambda token: (-float(row[token]), token))
    if params.top_k:
        ids = ids[: params.top_k]
    top = float(row[ids[0]])
    weights = [math.exp(float(row[token]) - top) for token in ids]
    if params.top_p < 1.0:
        mass, total = 0.0, sum(weights)
        for count, weight in enumerate(weights, 1):
            mass += weight
            if mass >= params.top_p * total:
                ids, weights = ids[:count], weights[:count]
                break
    return [token for token, weight in zip(ids, weights, strict=True) if weight >= params.min_p]


def sample(
    row: NDArray[np.float32], recent: Sequence[int], params: SamplingParams, position: int
) -> int:
    """The token that follows the one at `position`."""
    row = penalised(row, recent, params)
    ids = candidates(row, params)
    if params.greedy:
        return ids[0]
    scores = [
        float(row[token]) / params.temperature + gumbel(params.seed, position + 1, token)
        for token in ids
    ]
    return ids[scores.index(max(scores))]


def verify(
    logits: NDArray[np.float32],
    tokens: Sequence[int],
    parents: Sequence[int],
    recent: Sequence[int],
    params: SamplingParams,
    position: int,
) -> tuple[list[int], int]:
    """The accepted path and the bonus token."""
    text = list(recent)
    path = [0]
    while True:
        node = path[-1]
        token = sample(logits[node], text, params, position + len(path) - 1)
        fitting = [
            child
            for child in range(1, len(tokens))
            if parents[child] == node and tokens[child] == token
        ]
        if not fitting:
            return path, token
        path.append(fitting[0])
        text.append(token)
