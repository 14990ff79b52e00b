"""LFM2, dense and with experts: short convolutions, and attention in some layers."""

from __future__ import annotations

from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Attention, Ffn, Rope, ShortConv
from edgespec.models.spec import ModelSpec


def describe(read: Reader) -> ModelSpec:
    """Layers without key-value heads are convolutions."""
    rope = read.rope("halves")
    kv_heads = read.counts("attention.head_count_kv", least=0)
    return read.model(
        [
            read.pre_normed(
                layer,
                _attention(read, layer, rope) if heads else _convolution(read, layer),
                _feed_forward(read, layer),
            )
            for layer, heads in enumerate(kv_heads)
        ],
        last_norm="token_embd_norm.weight",
    )


def _attention(read: Reader, layer: int, rope: Rope) -> Attention:
    window = read.count("attention.sliding_window", 0, least=0)
    if read.architecture == "lfm2moe":
        window = 0
    return read.attention(layer, rope, window=window, **read.head_norms(layer))


def _convolution(read: Reader, layer: int) -> ShortConv:
    block, dim = f"blk.{layer}.shortconv.", read.dim
    return ShortConv(
        read.count("shortconv.l_cache", least=2),
        projection=read.matrix(f"{block}in_proj", 3 * dim, dim),
        conv=f"{block}conv.weight",
        output=read.matrix(f"{block}out_proj", dim, dim),
    )


def _feed_forward(read: Reader, layer: int) -> Ffn:
    experts = read.count("expert_count", 0, least=0)
    if not experts or layer < read.count("leading_dense_block_count", 0, least=0):
        return read.dense(layer)
    return read.moe(layer, scoring=read.scoring("sigmoid"), renormalise=True)
