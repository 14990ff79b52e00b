"""Llama, Mistral and SmolLM."""

from __future__ import annotations

from edgespec.models.architectures.reader import Reader
from edgespec.models.spec import ModelSpec


def describe(read: Reader) -> ModelSpec:
    """Attention with interleaved rotation; Llama 3.1 divides its frequencies by factors."""
    rope = read.rope("interleaved", factors=True)
    layers = [
        read.pre_normed(layer, read.attention(layer, rope), read.dense(layer))
        for layer in range(read.num_layers)
    ]
    # Inside the window of the files that state one, it changes nothing.
    window = read.count("attention.sliding_window", 0, least=0)
    context = read.count("context_length")
    return read.model(layers, context_length=min(context, window) if window else context)
