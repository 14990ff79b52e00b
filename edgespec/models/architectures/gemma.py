"""Gemma 2 and 3: norms before and after every part, windows in most layers, GELU."""

from __future__ import annotations

import math
from typing import Any

from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Ffn, LayerSpec, Mixer
from edgespec.models.spec import ModelSpec

_WIDE_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, which scale scores by the width that a head would have by rights."""


def describe_gemma2(read: Reader) -> ModelSpec:
    """Scores and logits are capped softly; every second layer sees all."""
    rope = read.rope("halves")
    base = read.number("rope.freq_base_swa", rope.base)
    local = read.rope("halves", base=base)
    window = read.count("attention.sliding_window", 4096, least=0)
    cap = read.number("attn_logit_softcapping", 50.0)
    scale = _scale(read)
    layers = []
    for layer, windowed in enumerate(read.windowed(2)):
        windowed = windowed and window > 0
        mixer = read.attention(
            layer,
            local if windowed else rope,
            window=window if windowed else 0,
            softcap=cap,
            scale=scale,
        )
        layers.append(sandwiched(read, layer, mixer, read.dense(layer, "gelu")))
    return scaled_model(read, layers, default_cap=30.0)


def describe_gemma3(read: Reader) -> ModelSpec:
    """Norms of queries and keys; layers with windows turn faster, and are not stretched."""
    rope = read.rope("halves")
    base = read.number("rope.freq_base_swa", 10000.0)
    local = read.rope("halves", base=base, scaled=False)
    window = read.count("attention.sliding_window", 0, least=0)
    scale = _scale(read)
    layers = []
    for layer, windowed in enumerate(read.windowed(6)):
        windowed = windowed and window > 0
        mixer = read.attention(
            layer,
            local if windowed else rope,
            window=window if windowed else 0,
            scale=scale,
            **read.head_norms(layer),
        )
        layers.append(sandwiched(read, layer, mixer, read.dense(layer, "gelu")))
    return scaled_model(read, layers)


def sandwiched(read: Reader, layer: int, mixer: Mixer, ffn: Ffn, **more: Any) -> LayerSpec:
    """A layer with norms before and after both parts."""
    return read.pre_normed(
        layer,
        mixer,
        ffn,
        mixer_post_norm=read.norm(f"blk.{layer}.post_attention_norm"),
        ffn_post_norm=read.norm(f"blk.{layer}.post_ffw_norm"),
        **more,
    )


def scaled_model(
    read: Reader, layers: list[LayerSpec], *, default_cap: float = 0.0, **more: Any
) -> ModelSpec:
    """Embeddings grow by the root of their width."""
    cap = read.factor("final_logit_softcapping", default_cap)
    return read.model(layers, embedding_scale=math.sqrt(read.dim), logit_softcap=cap, **more)


def _scale(read: Reader) -> float:
    wide = read.num_layers == _WIDE_LAYERS[read.architecture]
    return 1.0 / math.sqrt(read.dim / read.heads() if wide else read.head_dim())
