"""Qwen 2 and Qwen 3, dense and with experts."""

from __future__ import annotations

from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Moe
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


def describe_qwen2moe(read: Reader) -> ModelSpec:
    """Experts whose weights are as the router says, beside a shared one that is gated."""
    rope = read.rope("halves")
    return read.model(
        [
            read.pre_normed(layer, read.attention(layer, rope), gated_mixture(read, layer))
            for layer in range(read.num_layers)
        ]
    )


def describe_qwen3moe(read: Reader) -> ModelSpec:
    """Qwen 3's attention, and the best experts with weights that sum to one."""
    rope = read.rope("halves")
    return read.model(
        [
            read.pre_normed(
                layer,
                read.attention(layer, rope, **read.head_norms(layer)),
                read.moe(layer, renormalise=True),
            )
            for layer in range(read.num_layers)
        ]
    )


def gated_mixture(read: Reader, layer: int, *, renormalise: bool = False) -> Moe:
    """Experts, and a shared one that a row of its own gates."""
    shared = read.counts("expert_shared_feed_forward_length", _ffn_width(read, layer))[layer]
    return read.moe(
        layer,
        renormalise=renormalise,
        shared=read.dense(layer, width=shared, end="_shexp"),
        shared_gate=read.matrix(f"blk.{layer}.ffn_gate_inp_shexp", 1, read.dim),
    )


def _ffn_width(read: Reader, layer: int) -> int | None:
    return read.counts("feed_forward_length")[layer] if read.has("feed_forward_length") else None
