"""Phi 3 and 4: fused projections, rotation of a part of each head, LongRoPE."""

from __future__ import annotations

from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Dense, Matrix
from edgespec.models.spec import ModelSpec


def describe(read: Reader) -> ModelSpec:
    """Windows that files state are not used, as llama.cpp does not either."""
    rope = read.rope("halves", factors=True)
    return read.model(
        [
            read.pre_normed(layer, read.attention(layer, rope), _feed_forward(read, layer))
            for layer in range(read.num_layers)
        ]
    )


def _feed_forward(read: Reader, layer: int) -> Dense:
    """Gate and up are one tensor, in this order."""
    width = read.counts("feed_forward_length")[layer]
    fused, down = (f"blk.{layer}.ffn_{part}" for part in ("up", "down"))
    gate, up = (Matrix(f"{fused}.weight", width, read.dim, first=first) for first in (0, width))
    return Dense(width, gate, up, read.matrix(down, read.dim, width))
