"""Llama 4: attention in chunks, every fourth layer without rotation, experts of weighed inputs."""

from __future__ import annotations

from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Attention, Ffn, Norm, PositionScale, Rope
from edgespec.models.spec import ModelSpec

_CHUNK = 8192
_GROWTH = PositionScale(span=8192, slope=0.1, offset=1.0)
"""Neither is told by files."""
_UNNORMED_EXPERTS = 128
"""So many experts has the model whose queries and keys are not normed."""


def describe(read: Reader) -> ModelSpec:
    """The text part; image towers are other files."""
    if read.has("attention.sliding_window") and not read.count("attention.sliding_window", least=0):
        raise read.refuse("its attention is not in chunks, which is not supported for Llama 4")
    rope = read.rope("interleaved", factors=True)
    return read.model(
        [
            read.pre_normed(
                layer, _attention(read, layer, rope, chunked), _feed_forward(read, layer)
            )
            for layer, chunked in enumerate(read.windowed(4))
        ]
    )


def _attention(read: Reader, layer: int, rope: Rope, chunked: bool) -> Attention:
    """In chunks with rotation, or whole with queries that grow with their position."""
    if not chunked:
        return read.attention(layer, None, position_scale=_GROWTH)
    unnormed = read.count("expert_count") == _UNNORMED_EXPERTS
    norm = None if unnormed else Norm("", read.head_dim())
    return read.attention(
        layer, rope, chunk=_CHUNK, query_norm=norm, key_norm=norm, norm_after_rope=True
    )


def _feed_forward(read: Reader, layer: int) -> Ffn:
    if (layer + 1) % read.count("interleave_moe_layer_step", 1):
        return read.dense(layer)
    width = read.expert_width(layer)
    return read.moe(
        layer,
        scoring="sigmoid",
        weigh_input=True,
        shared=read.dense(layer, width=width, end="_shexp"),
    )
