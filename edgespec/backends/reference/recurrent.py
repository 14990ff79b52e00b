"""Mixers with a state, in the reference backend: from the state before a position to that after.

A state is never written to: every position has one of its own, so that trees, forks and truncation
need nothing else.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.reference.arithmetic import Vector, multiply, sigmoid, silu, softplus
from edgespec.backends.reference.weights import Weights
from edgespec.models.layers import GatedDeltaNet, Mamba2, Recurrent, ShortConv
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class State:
    """What a recurrent layer keeps of all positions up to one."""

    inputs: Vector
    """Of the convolution: [conv_width - 1, channels], the last position's at the end."""
    heads: Vector
    """One matrix for each head; empty for a convolution alone."""


def first_state(part: Recurrent) -> State:
    """Before the first position: zeros."""
    shapes: dict[type, tuple[int, ...]] = {ShortConv: (0,)}
    if isinstance(part, GatedDeltaNet):
        shapes[GatedDeltaNet] = (part.value_heads, part.value_dim, part.key_dim)
    elif isinstance(part, Mamba2):
        shapes[Mamba2] = (part.heads, part.head_dim, part.state_dim)
    inputs = np.zeros((part.conv_width - 1, part.channels), np.float32)
    return State(inputs, np.zeros(shapes[type(part)], np.float32))


def step(part: Recurrent, weights: Weights, normed: Vector, before: State) -> tuple[Vector, State]:
    """One position: what it gives, and the state after it."""
    if isinstance(part, GatedDeltaNet):
        return _gated_delta_net(part, weights, normed, before)
    if isinstance(part, Mamba2):
        return _mamba2(part, weights, normed, before)
    return _short_conv(part, weights, normed, before)


def _convolve(kernel: Vector, before: Vector, entry: Vector) -> tuple[Vector, Vector]:
    """Each channel over the last positions and this one; and the inputs that the next one needs."""
    inputs = np.concatenate([before, entry[None]])
    result: Vector = np.einsum("cw,wc->c", kernel.reshape(len(entry), -1), inputs)
    return result, inputs[1:]


def _short_conv(
    part: ShortConv, weights: Weights, normed: Vector, before: State
) -> tuple[Vector, State]:
    gate_in, gate_out, values = np.split(weights.project(part.projection, normed), 3)
    mixed, inputs = _convolve(weights.table(part.conv), before.inputs, gate_in * values)
    return weights.project(part.output, gate_out * mixed), State(inputs, before.heads)


def _gated_delta_net(
    part: GatedDeltaNet, weights: Weights, normed: Vector, before: State
) -> tuple[Vector, State]:
    entry = weights.project(part.qkv, normed)
    mixed, inputs = _convolve(weights.table(part.conv), before.inputs, entry)
    mixed = silu(mixed)
    width = part.key_heads * part.key_dim
    queries = _to_length_one(mixed[:width].reshape(-1, part.key_dim), weights.epsilon)
    keys = _to_length_one(mixed[width : 2 * width].reshape(-1, part.key_dim), weights.epsilon)
    values = mixed[2 * width :].reshape(part.value_heads, part.value_dim)
    strength = sigmoid(weights.project(part.beta, normed))
    steps = softplus(weights.project(part.alpha, normed) + weights.vector(part.dt_bias))
    decays = np.exp(weights.vector(part.decay) * steps)
    heads = before.heads * decays[:, None, None]
    out = np.empty_like(values)
    for head in range(part.value_heads):
        key, query = keys[head % part.key_heads], queries[head % part.key_heads]
        correction = (values[head] - multiply(heads[head], key)) * strength[head]
        heads[head] += np.outer(correction, key)
        out[head] = multiply(heads[head], query) / np.float32(np.sqrt(part.key_dim))
    gates = silu(weights.project(part.z, normed))
    gated = weights.norm(part.norm, out).ravel() * gates
    return weights.project(part.output, gated), State(inputs, heads)


def _to_length_one(heads: Vector, epsilon: float) -> Vector:
    """Each row of heads, by its length."""
    lengths = np.sqrt(np.square(heads, dtype=np.float64).sum(axis=1, keepdims=True) + epsilon)
    result: Vector = (heads / lengths).astype(np.float32)
    return result


def _mamba2(part: Mamba2, weights: Weights, normed: Vector, before: State) -> tuple[Vector, State]:
    inner, shared = part.heads * part.head_dim, part.groups * part.state_dim
    gates, entry, steps = np.split(
        weights.project(part.projection, normed), [inner, inner + part.channels]
    )
    mixed, inputs = _convolve(weights.table(part.conv), before.inputs, entry)
    mixed = silu(mixed + weights.vector(part.conv_bias))
    values = mixed[:inner].reshape(part.heads, part.head_dim)
    writes = mixed[inner : inner + shared].reshape(part.groups, part.state_dim)
    reads = mixed[inner + shared :].reshape(part.groups, part.state_dim)
    steps = softplus(steps + weights.vector(part.dt_bias))
    heads = before.heads * np.exp(weights.vector(part.decay) * steps)[:, None, None]
    out = np.empty_like(values)
    for head in range(part.heads):
        group = head // (part.heads // part.groups)
        heads[head] += np.outer(values[head] * steps[head], writes[group])
        out[head] = multiply(heads[head], reads[group])
    out += values * weights.vector(part.skip)[:, None]
    gated = weights.norm(part.norm, out.ravel() * silu(gates))
    return weights.project(part.output, gated), State(inputs, heads)
