"""Feed-forward parts of the reference backend: dense ones and mixtures of experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.reference.arithmetic import Vector, gelu, sigmoid, silu, softmax
from edgespec.backends.reference.weights import Weights
from edgespec.models.layers import Activation, Dense, Moe

_LEAST_SUM = 6.103515625e-5
"""Weights of chosen experts are divided by their sum, or by this f16 number if it is larger."""


def dense(part: Dense, weights: Weights, normed: Vector) -> Vector:
    """down(activation(gate(x)) * up(x))."""
    gate = weights.project(part.gate, normed)
    if part.cutoff:
        deviation = np.std(gate, ddof=1, dtype=np.float64)
        threshold = np.mean(gate, dtype=np.float64) + part.cutoff * deviation
        gate = np.maximum(gate - np.float32(threshold), 0)
    inner = activate(part.activation, gate, weights.project(part.up, normed))
    return weights.project(part.down, inner)


def activate(kind: Activation, gate: Vector, up: Vector) -> Vector:
    """activation(gate) * up."""
    if kind == "gelu":
        return gelu(gate) * up
    if kind == "swiglu_oai":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return gate * sigmoid(np.float32(1.702) * gate) * (up + 1)
    return silu(gate) * up


def mixture(part: Moe, weights: Weights, stream: Vector, normed: Vector) -> Vector:
    """What the chosen experts give, and the dense parts beside them; `normed` is of the stream."""
    entry = normed if part.experts_norm is None else weights.norm(part.experts_norm, stream)
    routed = normed if part.router_norm is None else weights.norm(part.router_norm, stream)
    chosen, shares = choose(part, weights, routed)
    total = np.zeros_like(stream)
    for expert, share in zip(chosen, shares, strict=True):
        total += _expert(part, weights, int(expert), share, entry)
    total = weights.norm(part.experts_post_norm, total)
    if part.shared is not None:
        beside = dense(part.shared, weights, entry)
        if part.shared_gate is not None:
            beside = beside * sigmoid(weights.project(part.shared_gate, entry))
        total = total + beside
    if part.beside is not None:
        total = total + weights.norm(part.beside_post_norm, dense(part.beside, weights, normed))
    return total


def choose(
    part: Moe, weights: Weights, entry: Vector
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The experts of a position, best first, and what their outputs are multiplied by."""
    logits = weights.project(part.router, entry)
    # Router scales and norms were written for the input; the product is linear in it.
    logits = logits * np.float32(part.router_scale)
    if part.scoring == "softmax":
        scores = softmax(logits)
    elif part.scoring == "sigmoid":
        scores = sigmoid(logits)
    else:
        scores = logits
    biased = scores + weights.vector(part.choice_bias) if part.choice_bias else scores
    if part.groups > 1:
        biased = _best_groups(part, biased)
    chosen = np.argsort(-biased, kind="stable")[: part.active]
    shares = softmax(logits[chosen]) if part.scoring == "softmax_of_chosen" else scores[chosen]
    if part.renormalise:
        shares = shares / max(shares.sum(), np.float32(_LEAST_SUM))
    return chosen, shares * np.float32(part.scale)


def _best_groups(part: Moe, scores: Vector) -> Vector:
    """Scores of which only the best groups' can be chosen; two scores speak for a group."""
    groups = scores.reshape(part.groups, -1)
    best = np.sort(groups, axis=1)[:, -2:].sum(axis=1)
    kept = np.argsort(-best, kind="stable")[: part.active_groups]
    result = np.full_like(groups, -np.inf)
    result[kept] = groups[kept]
    return result.ravel()


def _expert(part: Moe, weights: Weights, expert: int, share: np.float32, entry: Vector) -> Vector:
    """One expert's part of the sum."""
    if part.weigh_input:
        entry = entry * share
    gate = weights.project(part.gate, entry, expert)
    up = weights.project(part.up, entry, expert)
    out = weights.project(part.down, activate(part.activation, gate, up), expert)
    if part.expert_scale:
        out = out * weights.vector(part.expert_scale)[expert]
    return out if part.weigh_input else out * share
