"""One layer for one node, in the reference backend, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgespec.backends.reference.arithmetic import Vector, gelu
from edgespec.backends.reference.attention import (
    attend,
    attend_latent,
    keys_and_values,
    latent_kept,
)
from edgespec.backends.reference.experts import dense, mixture
from edgespec.backends.reference.recurrent import first_state, step
from edgespec.backends.reference.weights import Weights
from edgespec.models.layers import (
    AltUp,
    Attention,
    Dense,
    LatentAttention,
    Laurel,
    LayerSpec,
    Mixer,
    PerLayerInput,
)

Row = list[Any]
"""What a position keeps, layer by layer: keys and values, or the state after it."""


def run_layer(
    number: int, layer: LayerSpec, weights: Weights, streams: Vector, seen: Sequence[Row],
    extra: Vector | None, kv_type: Any, mixed: Vector | None = None,
) -> Vector:  # fmt: skip
    """Residual streams [streams, dim] after a layer; `seen` ends with the node's own row, where
    this layer leaves what it keeps. `extra` is the layer's embedding of the token, `mixed` what its
    mixer reads instead of the normed stream.
    """

    def body(stream: Vector) -> Vector:
        return _mix_and_feed(number, layer, weights, stream, seen, kv_type, mixed)

    if layer.altup is not None:
        return _alternate(layer, layer.altup, weights, streams, extra, body)
    stream = body(streams[0])
    if layer.per_layer is not None:
        stream = stream + _per_layer(layer.per_layer, weights, stream, extra)
    if layer.output_scale:
        stream = stream * weights.vector(layer.output_scale)
    return stream[None]


def _mix_and_feed(
    number: int, layer: LayerSpec, weights: Weights, stream: Vector, seen: Sequence[Row],
    kv_type: Any, mixed_instead: Vector | None,
) -> Vector:  # fmt: skip
    """Mixer and feed-forward part, each with its norms, added to the stream."""
    scale = np.float32(layer.residual_scale)
    normed = weights.norm(layer.mixer_norm, stream) if mixed_instead is None else mixed_instead
    mixed = _mixer(number, layer.mixer, weights, normed, seen, kv_type)
    added = stream + scale * weights.norm(layer.mixer_post_norm, mixed)
    if layer.laurel is not None:
        added = (added + _laurel(layer.laurel, weights, normed)) / np.float32(np.sqrt(2))
    if layer.ffn is None:
        return added
    normed = weights.norm(layer.ffn_norm, added)
    if isinstance(layer.ffn, Dense):
        fed = dense(layer.ffn, weights, normed)
    else:
        fed = mixture(layer.ffn, weights, added, normed)
    after: Vector = added + scale * weights.norm(layer.ffn_post_norm, fed)
    return after


def _mixer(
    number: int, part: Mixer, weights: Weights, normed: Vector, seen: Sequence[Row], kv_type: Any
) -> Vector:
    own, position = seen[-1], len(seen) - 1
    if isinstance(part, Attention):
        own[number] = keys_and_values(part, weights, normed, position, kv_type)
        source = number if part.shares is None else part.shares
        kept = [row[source] for row in seen]
        if kept[-1] is None:  # a draft head's, which reads what the model keeps
            kept.pop()
        return attend(part, weights, normed, position, kept)
    if isinstance(part, LatentAttention):
        own[number] = latent_kept(part, weights, normed, position, kv_type)
        return attend_latent(part, weights, normed, position, [row[number] for row in seen])
    before = seen[-2][number] if position else first_state(part)
    mixed, own[number] = step(part, weights, normed, before)
    return mixed


def _laurel(part: Laurel, weights: Weights, normed: Vector) -> Vector:
    low = weights.project(part.left, normed)
    result: Vector = normed + weights.norm(part.norm, weights.project(part.right, low))
    return result


def _per_layer(
    part: PerLayerInput, weights: Weights, stream: Vector, extra: Vector | None
) -> Vector:
    assert extra is not None
    gate = gelu(weights.project(part.gate, stream))
    return weights.norm(part.norm, weights.project(part.projection, gate * extra))


def _alternate(
    layer: LayerSpec, part: AltUp, weights: Weights, streams: Vector, extra: Vector | None,
    body: Any,
) -> Vector:  # fmt: skip
    """Predict all streams, compute the first, correct all by what came out."""
    count = len(streams)
    mixing = weights.project(part.predict, _modes(part, weights, streams[0]))
    predicted = streams + np.einsum("rs,sd->rd", mixing.reshape(count, count), streams)
    out = body(predicted[0])
    shares = weights.project(part.correct, _modes(part, weights, out)) + 1
    corrected: Vector = predicted + shares[:, None] * (out - predicted[0])
    if layer.per_layer is not None:
        first = corrected[0] * weights.vector(part.correct_scale)
        corrected[1:] += _per_layer(layer.per_layer, weights, first, extra)
    return corrected


def _modes(part: AltUp, weights: Weights, stream: Vector) -> Vector:
    normed = weights.norm(part.router_norm, stream) / np.float32(len(stream))
    modes: Vector = np.tanh(weights.project(part.router, normed))
    return modes
