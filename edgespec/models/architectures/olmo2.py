"""OLMo 2 and 3: norms after the parts only, and of all heads together."""

from __future__ import annotations

from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Attention, LayerSpec, Rope
from edgespec.models.spec import ModelSpec


def describe(read: Reader) -> ModelSpec:
    """Layers with windows (OLMo 3) are not stretched."""
    rope, local = read.rope("halves"), read.rope("halves", scaled=False)
    window = read.count("attention.sliding_window", 0, least=0)
    layers = []
    for layer, windowed in enumerate(read.windowed(4)):
        windowed = windowed and window > 0
        layers.append(
            LayerSpec(
                _attention(read, layer, local if windowed else rope, window if windowed else 0),
                read.dense(layer),
                mixer_post_norm=read.norm(f"blk.{layer}.post_attention_norm"),
                ffn_post_norm=read.norm(f"blk.{layer}.post_ffw_norm"),
            )
        )
    return read.model(layers)


def _attention(read: Reader, layer: int, rope: Rope, window: int) -> Attention:
    heads = read.counts("attention.head_count")[layer]
    kv_heads, width = read.counts("attention.head_count_kv", heads)[layer], read.head_dim()
    return read.attention(
        layer,
        rope,
        window=window,
        query_norm=read.norm(f"blk.{layer}.attn_q_norm", heads * width),
        key_norm=read.norm(f"blk.{layer}.attn_k_norm", kv_heads * width),
    )
