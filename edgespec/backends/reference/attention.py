"""Attention of one node over the positions it sees, in the reference backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.reference.arithmetic import Vector, multiply, sigmoid, soft_cap, softmax
from edgespec.backends.reference.weights import Weights
from edgespec.models.layers import Attention, LatentAttention

Kept = NDArray[Any]
"""What a position leaves for later ones, of the KV type."""


def keys_and_values(
    part: Attention, weights: Weights, normed: Vector, position: int, kv_type: Any
) -> Kept | None:
    """A position's own [2, kv_heads, head_dim]; None where an earlier layer's are read."""
    if part.key is None:
        return None
    heads = part.kv_heads, part.head_dim
    key = weights.project(part.key, normed).reshape(heads)
    value = key if part.value is None else weights.project(part.value, normed).reshape(heads)
    key = _turned(part, weights, part.key_norm, key, position)
    return np.stack([key, weights.norm(part.value_norm, value)]).astype(kv_type)


def attend(
    part: Attention, weights: Weights, normed: Vector, position: int, seen: Sequence[Kept]
) -> Vector:
    """What a position takes from those it sees; `seen` has every position's up to its own."""
    query = weights.project(part.query, normed).reshape(part.heads, part.head_dim)
    query = _turned(part, weights, part.query_norm, query, position)
    query = weights.scaled(part.position_scale, query, position)
    visible = np.stack(seen[first_seen(part, position) :]).astype(np.float32)
    sinks = weights.vector(part.sinks) if part.sinks else None
    mixed = np.empty_like(query)
    for head in range(part.heads):
        keys, values = visible[:, :, head // (part.heads // part.kv_heads)].swapaxes(0, 1)
        scores = multiply(np.ascontiguousarray(keys), query[head]) * np.float32(part.scale)
        scores = soft_cap(scores, part.softcap)
        shares = softmax(scores, None if sinks is None else float(sinks[head]))
        mixed[head] = np.einsum("i,ij->j", shares, np.ascontiguousarray(values))
    flat: Vector = mixed.ravel()
    if part.gate is not None:
        flat = flat * sigmoid(weights.project(part.gate, normed))
    return weights.project(part.output, flat)


def first_seen(part: Attention, position: int) -> int:
    """The first position that one sees."""
    first = max(0, position - part.window + 1) if part.window else 0
    return max(first, position // part.chunk * part.chunk) if part.chunk else first


def _turned(part: Attention, weights: Weights, norm: Any, heads: Vector, position: int) -> Vector:
    """Queries or keys, normed and rotated in the order that the part says."""
    if part.norm_after_rope:
        return weights.norm(norm, weights.turn(part.rope, heads, position))
    return weights.turn(part.rope, weights.norm(norm, heads), position)


def latent_kept(
    part: LatentAttention, weights: Weights, normed: Vector, position: int, kv_type: Any
) -> Kept:
    """A position's latent vector, then the key that all heads share: [latent_dim + rope.dim]."""
    latent = weights.norm(part.latent_norm, weights.project(part.latent, normed))
    shared = weights.project(part.rope_key, normed)
    return np.concatenate(
        [latent, weights.turn(part.rope, shared[None], position)[0]], dtype=kv_type
    )


def attend_latent(
    part: LatentAttention, weights: Weights, normed: Vector, position: int, seen: Sequence[Kept]
) -> Vector:
    """The same with keys and values made from latent vectors, head by head."""
    if part.query_down is not None:
        normed = weights.norm(part.query_norm, weights.project(part.query_down, normed))
    plain = weights.project(part.query, normed).reshape(part.heads, -1)
    rotated = weights.project(part.rope_query, normed).reshape(part.heads, -1)
    rotated = weights.turn(part.rope, rotated, position)
    factor = weights.scaled(part.position_scale, np.ones(1, np.float32), position)
    kept = np.stack(seen).astype(np.float32)
    latent = np.ascontiguousarray(kept[:, : part.latent_dim])
    shared = np.ascontiguousarray(kept[:, part.latent_dim :])
    mixed = np.empty((part.heads, part.value_dim), np.float32)
    for head in range(part.heads):
        key_up, value_up = _ups(part, weights, head)
        # Instead of a key for each position, the query is brought to the latent space.
        scores = multiply(latent, multiply(np.ascontiguousarray(key_up.T), plain[head]))
        scores = (scores + multiply(shared, rotated[head])) * np.float32(part.scale) * factor
        mixed[head] = multiply(value_up, np.einsum("i,ij->j", softmax(scores), latent))
    return weights.project(part.output, mixed.ravel())


def _ups(part: LatentAttention, weights: Weights, head: int) -> tuple[Vector, Vector]:
    """A head's [nope_dim, latent_dim] and [value_dim, latent_dim]."""
    if part.transposed:
        return weights.matrix(part.key_up, head).T, weights.matrix(part.value_up, head)
    keys = weights.matrix(part.key_up).reshape(part.heads, part.nope_dim, -1)
    values = weights.matrix(part.value_up).reshape(part.heads, part.value_dim, -1)
    return keys[head], values[head]
