"""Gemma 3n: four residual streams, low-rank paths beside attention, sparse gates.

What files do not say, llama.cpp takes for given, and so do we.
"""

from __future__ import annotations

from dataclasses import replace

from edgespec.models.architectures.gemma import sandwiched, scaled_model
from edgespec.models.architectures.gemma4 import (
    per_layer_embedding,
    per_layer_input,
    shared,
    unused_keys,
)
from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import AltUp, Attention, Laurel, Matrix, Norm, Rope
from edgespec.models.spec import ModelSpec, Streams

_STREAMS, _LOW_RANK, _OWN_WIDTH = 4, 64, 256
_OWN_KEYS, _SPARSE = 20, 10
"""Layers with keys of their own, and with sparse gates: the first."""
_CUTOFF = 1.6448533535003662
"""In standard deviations: 95 % of the gates are closed."""
_CAP = 30.0


def describe(read: Reader) -> ModelSpec:
    """Attention as Gemma 4's, with one width of heads."""
    rope = read.rope("halves")
    base = read.number("rope.freq_base_swa", 10000.0)
    local = read.rope("halves", base=base, scaled=False)
    layers = []
    for layer, windowed in enumerate(read.windowed(5)):
        mixer = _attention(read, layer, windowed, local if windowed else rope)
        if layer >= _OWN_KEYS:
            mixer = shared(mixer, _OWN_KEYS - (2 if windowed else 1))
        layers.append(
            sandwiched(
                read,
                layer,
                mixer,
                read.dense(layer, "gelu", cutoff=_CUTOFF if layer < _SPARSE else 0.0),
                per_layer=per_layer_input(read, layer, _OWN_WIDTH),
                laurel=_laurel(read, layer),
                altup=_altup(read, layer),
            )
        )
    spec = scaled_model(
        read,
        layers,
        per_layer_embedding=per_layer_embedding(read, _OWN_WIDTH),
        streams=_streams(read),
        unused=unused_keys(read, _OWN_KEYS),
    )
    return replace(spec, logit_softcap=_CAP)


def _attention(read: Reader, layer: int, windowed: bool, rope: Rope) -> Attention:
    return read.attention(
        layer,
        rope,
        scale=1.0,
        window=read.count("attention.sliding_window") if windowed else 0,
        value_norm=Norm("", read.head_dim()),
        **read.head_norms(layer),
    )


def _laurel(read: Reader, layer: int) -> Laurel:
    block = f"blk.{layer}.laurel_"
    return Laurel(
        left=read.matrix(f"{block}l", _LOW_RANK, read.dim),
        right=read.matrix(f"{block}r", read.dim, _LOW_RANK),
        norm=read.norm(f"{block}post_norm"),
    )


def _altup(read: Reader, layer: int) -> AltUp:
    block = f"blk.{layer}.altup_"
    return AltUp(
        router=read.matrix(f"{block}router", _STREAMS, read.dim),
        router_norm=read.norm(f"{block}router_norm"),
        predict=read.matrix(f"{block}predict_coef", _STREAMS**2, _STREAMS),
        correct=read.matrix(f"{block}correct_coef", _STREAMS, _STREAMS),
        correct_scale=f"{block}correct_scale.weight",
    )


def _streams(read: Reader) -> Streams:
    projection, unembedding = (
        Matrix(f"altup_{name}.weight", read.dim, read.dim, experts=_STREAMS - 1)
        for name in ("proj", "unembd_proj")
    )
    return Streams(_STREAMS, projection, unembedding)
