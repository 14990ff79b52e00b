"""Qwen 3.5 and 3.6, dense and with experts: gated delta nets, and attention in every fourth layer.

A block that predicts the token after next (MTP) is a layer with attention, and drafts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgespec.models.architectures.mtp import with_next_token_head
from edgespec.models.architectures.qwen import gated_mixture
from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Attention, GatedDeltaNet, LayerSpec, Rope
from edgespec.models.spec import ModelSpec


def describe(read: Reader) -> ModelSpec:
    """The dense models."""
    return _describe(read, experts=False)


def describe_moe(read: Reader) -> ModelSpec:
    """Experts with weights that sum to one, and a shared one that is gated."""
    return _describe(read, experts=True)


def _describe(read: Reader, experts: bool) -> ModelSpec:
    rope = read.rope("halves")
    read.check_sections(rope, interleaved=True)

    def describe_layer(layer: int, recurrent: bool = False) -> LayerSpec:
        return LayerSpec(
            _delta_net(read, layer) if recurrent else _attention(read, layer, rope),
            gated_mixture(read, layer, renormalise=True) if experts else read.dense(layer),
            mixer_norm=read.norm(f"blk.{layer}.attn_norm"),
            ffn_norm=read.norm(f"blk.{layer}.post_attention_norm"),
        )

    model = read.model([describe_layer(*each) for each in enumerate(_recurrent(read))])
    return with_next_token_head(read, model, describe_layer)


def _recurrent(read: Reader) -> list[bool]:
    """For every layer whether it has a state."""
    listed = read.keys.values.get(f"{read.architecture}.attention.recurrent_layers")
    if isinstance(listed, np.ndarray) and len(listed) >= read.num_layers:
        return [bool(each) for each in listed[: read.num_layers]]
    interval = read.count("full_attention_interval", 4)
    return [(layer + 1) % interval != 0 for layer in range(read.num_layers)]


def _attention(read: Reader, layer: int, rope: Rope) -> Attention:
    """Each head's rows of queries are followed by as many of the gate of its output."""
    plain = read.attention(layer, rope, **read.head_norms(layer))
    width = plain.head_dim
    query = replace(plain.query, run=width, stride=2 * width)
    return replace(plain, query=query, gate=replace(query, first=width))


def _delta_net(read: Reader, layer: int) -> GatedDeltaNet:
    """Heads of keys and of values are equally wide."""
    block, width = f"blk.{layer}.", read.count("ssm.state_size")
    keys, values = read.count("ssm.group_count"), read.count("ssm.time_step_rank")
    if values * width != read.count("ssm.inner_size") or values % keys:
        raise read.wrong(
            f"{values} heads of values and {keys} of keys, {width} wide, do not make a state of "
            f"{read.count('ssm.inner_size')}"
        )
    return GatedDeltaNet(
        keys,
        values,
        key_dim=width,
        value_dim=width,
        conv_width=read.count("ssm.conv_kernel", least=2),
        qkv=read.matrix(f"{block}attn_qkv", (2 * keys + values) * width, read.dim),
        z=read.matrix(f"{block}attn_gate", values * width, read.dim),
        alpha=read.matrix(f"{block}ssm_alpha", values, read.dim),
        beta=read.matrix(f"{block}ssm_beta", values, read.dim),
        conv=f"{block}ssm_conv1d.weight",
        dt_bias=f"{block}ssm_dt.bias",
        decay=f"{block}ssm_a",
        norm=read.norm(f"{block}ssm_norm", width),
        output=read.matrix(f"{block}ssm_out", read.dim, values * width),
    )
