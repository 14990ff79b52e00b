"""DeepSeek V2 and what follows it: latent attention, experts beside shared ones."""

from __future__ import annotations

import math
from typing import Any

from edgespec.models.architectures.glm4moe import scaled_and_shared
from edgespec.models.architectures.reader import Reader, magnitude_of
from edgespec.models.layers import Ffn, LatentAttention, PositionScale, Rope
from edgespec.models.spec import ModelSpec

_WRITTEN = 0.1
"""Converters multiply YaRN's log multiplier by it."""


def describe(read: Reader) -> ModelSpec:
    """Of files with one matrix of keys and values for all heads, or two for each."""
    multiplier = read.factor("rope.scaling.yarn_log_multiplier", 0.0) / _WRITTEN
    # The magnitude is in the scores' scale instead, of which rotation is a part.
    width = read.count("rope.dimension_count")
    rope = read.rope("interleaved", width=width, log_multiplier=1.0 if multiplier else 0.0)
    layers = [
        read.pre_normed(
            layer, _attention(read, layer, rope, multiplier), _feed_forward(read, layer)
        )
        for layer in range(read.num_layers)
    ]
    return read.model(layers)


def _attention(read: Reader, layer: int, rope: Rope, multiplier: float) -> LatentAttention:
    block, latent = f"blk.{layer}.", read.count("attention.kv_lora_rank")
    heads = read.counts("attention.head_count")[layer]
    split = f"{block}attn_k_b.weight" in read.tensors
    key, value = (
        read.count(f"attention.{part}_length{'_mla' if split else ''}") for part in ("key", "value")
    )
    plain = key - rope.dim
    if plain < 1:
        raise read.wrong(f"keys {key} wide have no room for {rope.dim} rotated dimensions")
    down = f"{block}attn_kv_a_mqa"
    return LatentAttention(
        heads,
        plain,
        value,
        latent=read.matrix(down, latent, read.dim),
        rope_key=read.matrix(down, rope.dim, read.dim, first=latent),
        latent_norm=read.norm(f"{block}attn_kv_a_norm", latent),
        output=read.matrix(f"{block}attn_output", read.dim, heads * value),
        rope=rope,
        scale=_scale(read, rope, multiplier) / math.sqrt(key),
        position_scale=_growth(read),
        **_queries(read, block, heads, plain, rope.dim),
        **_ups(read, block, heads, plain, value, latent, split),
    )


def _queries(read: Reader, block: str, heads: int, plain: int, turned: int) -> dict[str, Any]:
    def both(name: str, columns: int) -> dict[str, Any]:
        """A head's numbers that are not rotated, and those after them that are."""
        rows, stride = (heads * plain, heads * turned), plain + turned
        return {
            "query": read.matrix(name, rows[0], columns, run=plain, stride=stride),
            "rope_query": read.matrix(
                name, rows[1], columns, first=plain, run=turned, stride=stride
            ),
        }

    rank = read.count("attention.q_lora_rank", 0, least=0)
    if not rank or f"{block}attn_q.weight" in read.tensors:
        return both(f"{block}attn_q", read.dim)
    return both(f"{block}attn_q_b", rank) | {
        "query_down": read.matrix(f"{block}attn_q_a", rank, read.dim),
        "query_norm": read.norm(f"{block}attn_q_a_norm", rank),
    }


def _ups(
    read: Reader, block: str, heads: int, plain: int, value: int, latent: int, split: bool
) -> dict[str, Any]:
    if split:
        return {
            "key_up": read.matrix(f"{block}attn_k_b", latent, plain, experts=heads),
            "value_up": read.matrix(f"{block}attn_v_b", value, latent, experts=heads),
            "transposed": True,
        }
    both = plain + value
    return {
        "key_up": read.matrix(f"{block}attn_kv_b", heads * plain, latent, run=plain, stride=both),
        "value_up": read.matrix(
            f"{block}attn_kv_b", heads * value, latent, first=plain, run=value, stride=both
        ),
    }


def _scale(read: Reader, rope: Rope, multiplier: float) -> float:
    """What YaRN makes of scores, beyond what the rotated part has by itself."""
    factor = magnitude_of(rope.scale, multiplier)
    if rope.yarn and not multiplier:
        factor = magnitude_of(rope.scale, 1.0)
    return (read.number("rope.scaling.attn_factor", 1.0) * factor) ** 2


def _growth(read: Reader) -> PositionScale | None:
    slope = read.factor("attention.temperature_scale", 0.0)
    span = read.count("attention.temperature_length", 0, least=0)
    return PositionScale(span, slope) if slope and span else None


def _feed_forward(read: Reader, layer: int) -> Ffn:
    if layer < read.count("leading_dense_block_count", 0, least=0):
        return read.dense(layer)
    return read.moe(layer, scoring=read.scoring("softmax"), **scaled_and_shared(read, layer))
