"""What the native kernels cannot compute, told without importing them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from edgespec.memory.plan.native_sizes import PACKED, TILE_ROWS
from edgespec.models.layers import Attention, Dense, LayerSpec, Rope
from edgespec.models.spec import ModelSpec, TensorInfo


def refusal(spec: ModelSpec, tensors: Iterable[TensorInfo]) -> str:
    """Why a model cannot run on the native backend, "" when it can."""
    if spec.refusal:
        return spec.refusal
    part = _other_part(spec)
    if part:
        return (
            f"{spec.name} has {part}, which the native backend does not compute yet; use "
            "`--backend llamacpp`, or `--backend reference`, which is slow"
        )
    # Norms work on whole vectors; no trained model known to us has other widths.
    widths = {"embeddings": spec.dim}
    if any(each.query_norm for each in spec.attentions):
        widths["normed heads"] = spec.head_dim
    for name, width in widths.items():
        if width % TILE_ROWS:
            return (
                f"{spec.name} has {name} {width} wide; the native backend computes multiples of "
                f"{TILE_ROWS}, so choose another model, or `--backend reference`"
            )
    for info in tensors:
        columns, group = info.shape[-1], max(2, PACKED.get(info.type, (1, 0))[0])
        if len(info.shape) > 1 and (info.type not in PACKED or columns % group):
            return (
                f"{info.name} of {spec.name} is {info.type.name} with {columns} columns; the "
                f"native backend computes {', '.join(kind.name for kind in PACKED)} with whole "
                "blocks and an even number of columns: requantise the model to one of these"
            )
    return ""


def _other_part(spec: ModelSpec) -> str:
    """The first part that is not Llama's or Qwen 2's or 3's, "" when there is none."""
    if (spec.embedding_scale, spec.logit_scale, spec.logit_softcap) != (1.0, 1.0, 0.0):
        return "scaled embeddings or logits"
    if spec.last_norm != "output_norm.weight" or spec.per_layer_embedding or spec.streams:
        return "embeddings or a last norm of another kind"
    for layer in spec.layers:
        part = _other_part_of_layer(layer)
        if part:
            return part
    if len({_shape(layer) for layer in spec.layers}) > 1:
        return "layers that differ from each other"
    return ""


def _other_part_of_layer(layer: LayerSpec) -> str:
    attention, ffn = layer.mixer, layer.ffn
    if not isinstance(attention, Attention):
        return "layers that are not attention"
    if not isinstance(ffn, Dense):
        return "a mixture of experts"
    if attention.key is None or attention.value is None or attention.rope is None:
        return "attention without keys, values or rotation of its own"
    rope = attention.rope
    if rope != Rope(rope.base, rope.dim, rope.layout, rope.scale, rope.factors):
        return "rotation that is stretched by YaRN or LongRoPE"
    usual = Attention(
        attention.heads, attention.kv_heads, attention.head_dim, attention.query, attention.key,
        attention.value, attention.output, rope, attention.scale,
        attention.query_norm, attention.key_norm,
    )  # fmt: skip
    if attention != usual or not math.isclose(attention.scale, attention.head_dim**-0.5):
        return "attention with a window, sinks, gates or scores scaled in its own way"
    norms = attention.query_norm, attention.key_norm
    if norms != (None, None) and any(n is None or n.width != attention.head_dim for n in norms):
        return "queries and keys normed in its own way"
    if layer.mixer_norm is None or layer.ffn_norm is None or layer != LayerSpec(
        attention, Dense(ffn.width, ffn.gate, ffn.up, ffn.down), layer.mixer_norm,
        ffn_norm=layer.ffn_norm,
    ):  # fmt: skip
        return "norms, scales or a feed-forward part of another kind"
    if len({matrix.tensor for matrix in layer.matrices}) < len(layer.matrices):
        return "fused projections"
    biases = [matrix.bias for matrix in (attention.output, *ffn.matrices)]
    three = {bool(matrix.bias) for matrix in (attention.query, attention.key, attention.value)}
    return "biases in unusual places" if any(biases) or len(three) > 1 else ""


def _shape(layer: LayerSpec) -> tuple[object, ...]:
    """What must be equal in all layers."""
    mixer, ffn = layer.mixer, layer.ffn
    assert isinstance(mixer, Attention) and ffn is not None
    heads = mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.rope, mixer.scale
    return *heads, ffn.width, mixer.query_norm is None, bool(mixer.query.bias)
