"""Layers with a state, in float64 and one position after another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def delta_step(
    state: Floats, key: Floats, value: Floats, query: Floats, decay: float, beta: float
) -> tuple[Floats, Floats]:
    """State [key_dim, value_dim] after a step of a gated delta net, and what it puts out."""
    decayed = decay * state
    delta = (value - decayed.T @ key) * beta
    after = decayed + np.outer(key, delta)
    return after, after.T @ query


def mamba_step(
    state: Floats, key: Floats, value: Floats, query: Floats, decay: float, beta: float, skip: float
) -> tuple[Floats, Floats]:
    """The same of Mamba-2: key B, query C, value x, beta the time step."""
    after = decay * state + np.outer(key, value * beta)
    return after, after.T @ query + skip * value


def convolve(inputs: Floats, taps: Floats, bias: Floats | float = 0.0) -> Floats:
    """Causal: inputs [positions, channels], taps [channels, width], nothing before the start."""
    width = taps.shape[1]
    padded = np.concatenate([np.zeros((width - 1, inputs.shape[1])), inputs])
    return np.stack(
        [(padded[i : i + width] * taps.T).sum(axis=0) + bias for i in range(len(inputs))]
    )


def silu(values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        gated: Floats = values / (1.0 + np.exp(-values))
    return gated


def softplus(values: Floats) -> Floats:
    summed: Floats = np.logaddexp(values, 0.0)
    return summed
