"""gpt-oss: windows in every second layer, a sink for each head, experts with biases."""

from __future__ import annotations

from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import LayerSpec
from edgespec.models.spec import ModelSpec


def describe(read: Reader) -> ModelSpec:
    """Weights of experts are the softmax of the chosen ones' scores."""
    rope = read.rope("halves")
    local = read.rope("halves", base=read.number("rope.freq_base_swa", rope.base))
    window = read.count("attention.sliding_window")
    layers = [
        LayerSpec(
            read.attention(
                layer,
                local if windowed else rope,
                window=window if windowed else 0,
                sinks=f"blk.{layer}.attn_sinks.weight",
            ),
            read.moe(layer, scoring="softmax_of_chosen", activation="swiglu_oai"),
            mixer_norm=read.norm(f"blk.{layer}.attn_norm"),
            ffn_norm=read.norm(f"blk.{layer}.post_attention_norm"),
        )
        for layer, windowed in enumerate(read.windowed(2))
    ]
    return read.model(layers)
