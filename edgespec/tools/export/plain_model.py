"""Which models can be exported: decoders whose layers are all alike and made of the usual parts."""

from __future__ import annotations

import math
from dataclasses import replace

from edgespec.errors import UnsupportedModelError
from edgespec.models.layers import Attention, Dense, LayerSpec
from edgespec.models.spec import ModelSpec


def plain_attention(spec: ModelSpec) -> Attention:
    """The attention that all layers have; UnsupportedModelError for models with other parts."""
    what = _other_part(spec)
    if what:
        raise UnsupportedModelError(
            f"cannot export {spec.name}: it has {what}, and only Llama and Qwen 2 and 3 of dense "
            "layers can be exported; run it from its GGUF file instead"
        )
    return spec.attentions[0]


def _other_part(spec: ModelSpec) -> str:
    if (spec.embedding_scale, spec.logit_scale, spec.logit_softcap) != (1.0, 1.0, 0.0):
        return "scaled embeddings or logits"
    for number, layer in enumerate(spec.layers):
        attention, ffn = layer.mixer, layer.ffn
        if not isinstance(attention, Attention) or not isinstance(ffn, Dense):
            return "layers that are not attention and a dense feed-forward part"
        rope = attention.rope
        if rope is None or rope.yarn or rope.long_factors or rope.magnitude != 1.0:
            return "a rotation of its own"
        if not math.isclose(attention.scale, attention.head_dim**-0.5):
            return "scores scaled in its own way"
        block = f"blk.{number}."
        plain = LayerSpec(
            _plain(attention), Dense(ffn.width, ffn.gate, ffn.up, ffn.down),
            layer.mixer_norm, ffn_norm=layer.ffn_norm,
        )  # fmt: skip
        tensors = {matrix.tensor for matrix in plain.matrices}
        if layer != plain or not all(name.startswith(block) for name in tensors):
            return f"parts of its own in layer {number}"
        if any(matrix.run for matrix in plain.matrices) or len(tensors) < 7:
            return "fused projections"
    return ""


def _plain(attention: Attention) -> Attention:
    """The same heads without anything that is not usual."""
    return Attention(
        attention.heads,
        attention.kv_heads,
        attention.head_dim,
        attention.query,
        attention.key,
        attention.value,
        replace(attention.output, bias=""),
        attention.rope,
        attention.scale,
        query_norm=attention.query_norm,
        key_norm=attention.key_norm,
    )
