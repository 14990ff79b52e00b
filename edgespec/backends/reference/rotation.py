"""Rotary position embedding and position scales of the reference backend."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.reference.arithmetic import Vector
from edgespec.models.layers import PositionScale, Rope


def factors_name(rope: Rope, context_length: int) -> str:
    """The tensor of divisors in a context of so many positions, "" for none."""
    longer = bool(rope.long_factors) and context_length > rope.original_context
    return rope.long_factors if longer else rope.factors


def rope_frequencies(rope: Rope, factors: Vector | None) -> NDArray[np.float64]:
    """Radians per position of each rotated pair, f64 [dim / 2].

    Source: RoFormer, equation 15; linear position scaling; Llama 3.1's per-frequency divisors;
    YaRN, section 3.2.
    """
    pairs = np.arange(rope.dim // 2)
    extrapolated = rope.base ** (-2.0 * pairs / rope.dim)
    if factors is not None:
        extrapolated = extrapolated / factors.ravel()
    interpolated = rope.scale * extrapolated
    if not rope.yarn:
        return interpolated
    share = rope.yarn * _ramp(rope)
    frequencies: NDArray[np.float64] = interpolated * (1 - share) + extrapolated * share
    return frequencies


def _ramp(rope: Rope) -> NDArray[np.float64]:
    """1 for pairs that turn often in the original context, 0 for those that hardly do."""

    def pair(turns: float) -> float:
        """The pair that turns so often in the original context."""
        ratio = rope.original_context / (turns * 2 * math.pi)
        return rope.dim * math.log(ratio) / (2 * math.log(rope.base))

    first = max(0, math.floor(pair(rope.beta_fast)))
    last = min(rope.dim - 1, math.ceil(pair(rope.beta_slow)))
    along = (np.arange(rope.dim // 2) - first) / max(0.001, last - first)
    ramp: NDArray[np.float64] = 1 - np.clip(along, 0, 1)
    return ramp


def rotate(
    heads: Vector, angles: NDArray[np.float64], layout: str, magnitude: float = 1.0
) -> Vector:
    """Turn pairs of leading dimensions of heads [heads, head_dim] by angles [rope_dim / 2] rad.

    Pairs are neighbours (2i, 2i + 1) when "interleaved", (i, i + rope_dim / 2) in "halves".
    """
    order = np.arange(2 * len(angles))
    first, second = order.reshape(-1, 2).T if layout == "interleaved" else order.reshape(2, -1)
    cosines, sines = magnitude * np.cos(angles), magnitude * np.sin(angles)
    turned = heads.copy()
    turned[:, first] = heads[:, first] * cosines - heads[:, second] * sines
    turned[:, second] = heads[:, first] * sines + heads[:, second] * cosines
    return turned


def position_factor(scale: PositionScale | None, position: int) -> np.float32:
    """What queries at a position are multiplied by."""
    if scale is None:
        return np.float32(1.0)
    return np.float32(
        1 + scale.slope * math.log1p(math.floor((position + scale.offset) / scale.span))
    )
