"""Qwen 2 and Qwen 3."""

from __future__ import annotations

from edgespec.models.architectures.reader import Reader
from edgespec.models.spec import ModelSpec


def describe_qwen2(read: Reader) -> ModelSpec:
    """Llama with biases on queries, keys and values, and rotation in halves."""
    rope = read.rope("halves")
    return read.model(
        [
            read.pre_normed(layer, read.attention(layer, rope, biased=True), read.dense(layer))
            for layer in range(read.num_layers)
        ]
    )


def describe_qwen3(read: Reader) -> ModelSpec:
    """Norms of every head's queries and keys instead of biases."""
    rope = read.rope("halves")
    return read.model(
        [
            read.pre_normed(
                layer, read.attention(layer, rope, **read.head_norms(layer)), read.dense(layer)
            )
            for layer in range(read.num_layers)
        ]
    )
