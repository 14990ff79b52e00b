"""Llama, Mistral and SmolLM; Mixtral; SmolLM3; Mistral Small 3 and Ministral 3."""

from __future__ import annotations

from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Ffn, PositionScale
from edgespec.models.spec import ModelSpec

_UNTURNED = 4
"""Every so many layers of SmolLM3, positions are not told; no key says so."""


def describe(read: Reader) -> ModelSpec:
    """Attention with interleaved rotation; Llama 3.1 divides its frequencies by factors."""
    rope = read.rope("interleaved", factors=True)
    layers = [
        read.pre_normed(layer, read.attention(layer, rope), feed_forward(read, layer))
        for layer in range(read.num_layers)
    ]
    # Inside the window of the files that state one, it changes nothing.
    window = read.count("attention.sliding_window", 0, least=0)
    context = read.count("context_length")
    return read.model(layers, context_length=min(context, window) if window else context)


def describe_smollm3(read: Reader) -> ModelSpec:
    """Llama without rotation in every fourth layer."""
    rope = read.rope("interleaved", factors=True)
    return read.model(
        [
            read.pre_normed(
                layer,
                read.attention(layer, rope if (layer + 1) % _UNTURNED else None),
                read.dense(layer),
            )
            for layer in range(read.num_layers)
        ]
    )


def describe_mistral3(read: Reader) -> ModelSpec:
    """Llama with YaRN, and queries that grow with their position where the file says by how much.

    The text part; image towers are other files.
    """
    rope = read.rope(
        "interleaved",
        factors=True,
        log_multiplier=read.factor("rope.scaling.yarn_log_multiplier", 0.0),
        betas=True,
    )
    slope = read.factor("attention.temperature_scale", 0.0)
    grown = PositionScale(read.original_context(), slope) if slope else None
    return read.model(
        [
            read.pre_normed(
                layer,
                read.attention(layer, rope, position_scale=grown),
                feed_forward(read, layer),
            )
            for layer in range(read.num_layers)
        ]
    )


def feed_forward(read: Reader, layer: int) -> Ffn:
    """Dense, or Mixtral's experts, of the feed-forward width each."""
    if not read.count("expert_count", 0, least=0):
        return read.dense(layer)
    width = read.counts("feed_forward_length")[layer]
    return read.moe(layer, width, scoring="softmax", renormalise=True)
