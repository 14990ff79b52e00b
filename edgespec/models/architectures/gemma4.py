"""Gemma 4: heads of two widths, shared keys and values, embeddings for each layer, experts beside
a dense part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgespec.models.architectures.gemma import sandwiched, scaled_model
from edgespec.models.architectures.reader import ROPE_FACTORS, Reader
from edgespec.models.layers import Attention, Matrix, Moe, Norm, PerLayerInput, Rope
from edgespec.models.spec import ModelSpec, PerLayerEmbedding


def describe(read: Reader) -> ModelSpec:
    """Scores are not scaled; values are normed without gains, and may be the keys."""
    kinds = read.windowed(1)
    full, local = full_rope(read), local_rope(read)
    width = read.count("embedding_length_per_layer_input", 0, least=0)
    num_shared = read.count("attention.shared_kv_layers", 0, least=0)
    if num_shared >= read.num_layers:
        raise read.wrong(f"{num_shared} of {read.num_layers} layers cannot share others' keys")
    first_shared = read.num_layers - num_shared
    layers = []
    for layer, windowed in enumerate(kinds):
        mixer = attention(read, layer, windowed, local if windowed else full)
        if layer >= first_shared:
            mixer = shared(mixer, first_shared - (2 if windowed else 1))
        scale = f"blk.{layer}.layer_output_scale.weight"
        more = {"per_layer": per_layer_input(read, layer, width)} if width else {}
        layers.append(
            sandwiched(
                read,
                layer,
                mixer,
                _mixture(read, layer) or read.dense(layer, "gelu"),
                output_scale=scale if scale in read.tensors else "",
                **more,
            )
        )
    return scaled_model(
        read,
        layers,
        per_layer_embedding=per_layer_embedding(read, width) if width else None,
        unused=unused_keys(read, first_shared),
    )


def full_rope(read: Reader) -> Rope:
    """Of layers that see all; factors leave most of a head as it is."""
    rope = read.rope("halves")
    return replace(rope, factors=ROPE_FACTORS if ROPE_FACTORS in read.tensors else "")


def local_rope(read: Reader) -> Rope:
    """Of layers with a window."""
    width = read.count("attention.key_length_swa", read.head_dim())
    return read.rope(
        "halves",
        width=read.count("rope.dimension_count_swa", width),
        base=read.number("rope.freq_base_swa", 10000.0),
        scaled=False,
    )


def attention(read: Reader, layer: int, windowed: bool, rope: Rope) -> Attention:
    """A layer's, with keys and values of its own."""
    width = read.head_dim()
    if windowed:
        width = read.count("attention.key_length_swa", width)
        if read.count("attention.value_length_swa", width) != width:
            raise read.refuse("keys and values of its windowed layers differ in width")
    more: dict[str, Any] = {}
    if f"blk.{layer}.attn_v.weight" not in read.tensors:
        more["value"] = None
    return read.attention(
        layer,
        rope,
        width=width,
        scale=1.0,
        window=read.count("attention.sliding_window") if windowed else 0,
        query_norm=read.norm(f"blk.{layer}.attn_q_norm", width),
        key_norm=read.norm(f"blk.{layer}.attn_k_norm", width),
        value_norm=Norm("", width),
        **more,
    )


def shared(mixer: Attention, source: int) -> Attention:
    """The same attention on the keys and values of an earlier layer."""
    return replace(mixer, key=None, value=None, key_norm=None, value_norm=None, shares=source)


def unused_keys(read: Reader, first_shared: int) -> tuple[str, ...]:
    """Tensors that files hold for layers which share the keys and values of others."""
    parts = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
    names = (f"blk.{n}.{part}" for n in range(first_shared, read.num_layers) for part in parts)
    return tuple(name for name in names if name in read.tensors)


def _mixture(read: Reader, layer: int) -> Moe | None:
    """Experts beside a dense part, in the layers that have a router."""
    block = f"blk.{layer}."
    if f"{block}ffn_gate_inp.weight" not in read.tensors:
        return None
    scale = f"{block}ffn_down_exps.scale"
    return read.moe(
        layer,
        activation="gelu",
        renormalise=True,
        router_norm=Norm(f"{block}ffn_gate_inp.scale", read.dim),
        router_scale=read.dim**-0.5,
        expert_scale=scale if scale in read.tensors else "",
        beside=read.dense(layer, "gelu"),
        experts_norm=read.norm(f"{block}pre_ffw_norm_2"),
        beside_post_norm=read.norm(f"{block}post_ffw_norm_1"),
        experts_post_norm=read.norm(f"{block}post_ffw_norm_2"),
    )


def per_layer_input(read: Reader, layer: int, width: int) -> PerLayerInput:
    """A layer's use of its own embedding of the token, so wide."""
    return PerLayerInput(
        gate=read.matrix(f"blk.{layer}.inp_gate", width, read.dim),
        projection=read.matrix(f"blk.{layer}.proj", read.dim, width),
        norm=read.norm(f"blk.{layer}.post_norm"),
    )


def per_layer_embedding(read: Reader, width: int) -> PerLayerEmbedding:
    """Every layer's embeddings, so wide each."""
    columns, rows = read.num_layers * width, read.tensors["token_embd.weight"].shape[0]
    return PerLayerEmbedding(
        table=Matrix("per_layer_token_embd.weight", rows, columns),
        width=width,
        projection=read.matrix("per_layer_model_proj", columns, read.dim),
        norm=read.norm("per_layer_proj_norm", width),
    )
