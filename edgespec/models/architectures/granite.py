"""Granite 3 and 4: scales on embeddings, residuals, scores and logits; hybrids with Mamba-2."""

from __future__ import annotations

from edgespec.models.architectures.reader import ROPE_FACTORS, Reader
from edgespec.models.layers import Attention, Ffn, Mamba2, Mixer, Rope
from edgespec.models.spec import ModelSpec


def describe(read: Reader) -> ModelSpec:
    """Layers without key-value heads are Mamba-2; a key says whether attention rotates at all."""
    turned = read.flag("rope.scaling.finetuned", True)
    rope = read.rope("interleaved", factors=True) if turned else None
    kv_heads = read.counts("attention.head_count_kv", read.heads(), least=0)
    layers = [
        read.pre_normed(
            layer,
            _mixer(read, layer, rope, heads),
            _feed_forward(read, layer),
            residual_scale=read.factor("residual_scale"),
        )
        for layer, heads in enumerate(kv_heads)
    ]
    return read.model(
        layers,
        embedding_scale=read.factor("embedding_scale"),
        logit_scale=1.0 / read.factor("logit_scale"),
        unused=(ROPE_FACTORS,) if not turned and ROPE_FACTORS in read.tensors else (),
    )


def _mixer(read: Reader, layer: int, rope: Rope | None, kv_heads: int) -> Mixer:
    if not kv_heads and read.architecture == "granitehybrid":
        return _mamba(read, layer)
    return _attention(read, layer, rope)


def _attention(read: Reader, layer: int, rope: Rope | None) -> Attention:
    scale = read.factor("attention.scale", read.head_dim() ** -0.5)
    return read.attention(layer, rope, scale=scale)


def _mamba(read: Reader, layer: int) -> Mamba2:
    block, inner = f"blk.{layer}.", read.count("ssm.inner_size")
    heads, groups = read.count("ssm.time_step_rank"), read.count("ssm.group_count")
    state = read.count("ssm.state_size")
    if inner % heads or heads % groups or inner % groups:
        raise read.wrong(f"{inner} channels cannot be {heads} heads in {groups} groups")
    return Mamba2(
        heads,
        head_dim=inner // heads,
        state_dim=state,
        groups=groups,
        conv_width=read.count("ssm.conv_kernel", least=2),
        projection=read.matrix(f"{block}ssm_in", 2 * inner + 2 * groups * state + heads, read.dim),
        conv=f"{block}ssm_conv1d.weight",
        conv_bias=f"{block}ssm_conv1d.bias",
        dt_bias=f"{block}ssm_dt.bias",
        decay=f"{block}ssm_a",
        skip=f"{block}ssm_d",
        norm=read.norm(f"{block}ssm_norm", inner // groups, groups=groups),
        output=read.matrix(f"{block}ssm_out", read.dim, inner),
    )


def _feed_forward(read: Reader, layer: int) -> Ffn:
    if not read.count("expert_count", 0, least=0):
        return read.dense(layer)
    shared = read.count("expert_shared_feed_forward_length", 0, least=0)
    return read.moe(
        layer,
        read.counts("feed_forward_length")[layer],
        renormalise=True,
        shared=read.dense(layer, width=shared, end="_shexp") if shared else None,
    )
