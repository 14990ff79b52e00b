"""The arithmetic of the reference backend: f32 in and out, what is delicate in f64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


def multiply(matrix: Vector, vector: Vector) -> Vector:
    """matrix [rows, columns] x vector [columns], without BLAS."""
    product: Vector = np.einsum("ij,j->i", matrix, vector)
    return product


def rms_norm(values: Vector, gain: Vector, epsilon: float) -> Vector:
    """values [..., width] / root of their mean square * gain [width]; the mean in float64."""
    mean = np.mean(np.square(values, dtype=np.float64), axis=-1, keepdims=True)
    normed: Vector = (values / np.sqrt(mean + epsilon) * gain).astype(np.float32)
    return normed


def softmax(scores: Vector, sink: float | None = None) -> Vector:
    """Scores [n] as shares that sum to one, or to less where a sink takes part."""
    highest = float(scores.max()) if sink is None else max(float(scores.max()), sink)
    powers = np.exp(scores - highest, dtype=np.float64)
    total = powers.sum() + (0.0 if sink is None else np.exp(sink - highest))
    shares: Vector = (powers / total).astype(np.float32)
    return shares


def sigmoid(values: Vector) -> Vector:
    """1 / (1 + e**-values), for any values."""
    with np.errstate(over="ignore"):
        shares: Vector = (1.0 / (1.0 + np.exp(-values.astype(np.float64)))).astype(np.float32)
    return shares


def silu(values: Vector) -> Vector:
    """values / (1 + e**-values), for any values."""
    gated: Vector
    with np.errstate(over="ignore"):
        gated = (values / (1.0 + np.exp(-values.astype(np.float64)))).astype(np.float32)
    return gated


def gelu(values: Vector) -> Vector:
    """The tanh approximation. Source: "Gaussian Error Linear Units", section 2."""
    exact = values.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (exact + 0.044715 * exact**3)
    gated: Vector = (0.5 * exact * (1 + np.tanh(inner))).astype(np.float32)
    return gated


def softplus(values: Vector) -> Vector:
    """ln(1 + e**values)."""
    result: Vector = np.logaddexp(0.0, values.astype(np.float64)).astype(np.float32)
    return result


def soft_cap(values: Vector, cap: float) -> Vector:
    """cap * tanh(values / cap); 0 is without."""
    return values if not cap else (cap * np.tanh(values / np.float32(cap))).astype(np.float32)
