"""GLM 4.5 and 4.6: experts chosen by biased sigmoids, after a few dense layers."""

from __future__ import annotations

from typing import Any

from edgespec.models.architectures.mtp import with_next_token_head
from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Attention, Ffn, LayerSpec, Rope
from edgespec.models.spec import ModelSpec


def describe(read: Reader) -> ModelSpec:
    """A block that predicts the token after next is one more layer, and drafts."""
    rope = read.rope("halves")
    read.check_sections(rope, interleaved=False)

    def describe_layer(layer: int) -> LayerSpec:
        return LayerSpec(
            _attention(read, layer, rope),
            _feed_forward(read, layer),
            mixer_norm=read.norm(f"blk.{layer}.attn_norm"),
            ffn_norm=read.norm(f"blk.{layer}.post_attention_norm"),
        )

    model = read.model([describe_layer(layer) for layer in range(read.num_layers)])
    return with_next_token_head(read, model, describe_layer)


def _attention(read: Reader, layer: int, rope: Rope) -> Attention:
    """Only the larger model norms queries and keys."""
    normed = f"blk.{layer}.attn_q_norm.weight" in read.tensors
    return read.attention(layer, rope, **(read.head_norms(layer) if normed else {}))


def _feed_forward(read: Reader, layer: int) -> Ffn:
    if layer < read.count("leading_dense_block_count", 0, least=0):
        return read.dense(layer)
    return read.moe(layer, scoring=read.scoring("sigmoid"), **scaled_and_shared(read, layer))


def scaled_and_shared(read: Reader, layer: int) -> dict[str, Any]:
    """The fields of experts whose weights are scaled, beside a few that are always chosen."""
    shared = read.count("expert_shared_count", 0, least=0) * read.expert_width(layer)
    return {
        "renormalise": read.flag("expert_weights_norm", False),
        "scale": read.factor("expert_weights_scale"),
        "shared": read.dense(layer, width=shared, end="_shexp") if shared else None,
        "groups": read.count("expert_group_count", 0, least=0) or 1,
        "active_groups": read.count("expert_group_used_count", 0, least=0) or 1,
    }
