"""Bytes of keys and values in the native backend's arenas, by formula (`memory/kv/arena.py`)."""

from __future__ import annotations

from dataclasses import replace

from edgespec.memory.plan.state_layout import round_up
from edgespec.models.layers import Attention, Matrix
from edgespec.models.spec import ModelSpec

KV_BLOCK = 256
"""Positions in one block of the KV arena."""
ALIGNMENT = 64
"""Extra bytes of a block, so that it can start on a cache line."""
SPAN = 512
"""Positions whose softmax is computed at once."""
KEPT_BEHIND = 256
"""Positions that a window is kept longer than it is seen, so that a sequence can return to them."""
SCALED = 32
"""Dimensions of an int8 or q4 key that share a scale."""


def kv_bytes(spec: ModelSpec, positions: int, kv_type: str = "f16", rows: int = 0) -> int:
    """KV arena: blocks x (layers x kv_heads x 256 x bytes of a key and a value + 64).

    In f16 these are 2 x head_dim to 16 x 2 bytes, half of that for latent vectors. In int8 the key
    has head_dim to 4 bytes and an f16 scale for each 32, the value head_dim to 16 and one scale. In
    q4 both have half of head_dim to 32, and the same scales. Nodes that may be rejected yet lie in
    it too, past the committed positions. Layers that see a window only keep that, and what passes
    of up to `rows` rows add.
    """
    return sum(
        -(-kept_positions(shape, positions, rows) // KV_BLOCK)
        * (count * _head_block_bytes(shape, kv_type) + ALIGNMENT)
        for shape, count in kv_shapes(spec).items()
    )


def kept_positions(shape: Attention, context_length: int, rows: int) -> int:
    """Positions whose keys and values a sequence keeps at a time: all, or those in a window, in
    whole spans, with those of a pass of so many rows and some to return to.
    """
    if not shape.reach:
        return context_length
    return min(context_length, shape.reach + KEPT_BEHIND + SPAN + rows + KV_BLOCK)


def kv_shapes(spec: ModelSpec) -> dict[Attention, int]:
    """Shapes of attention that have an arena, and how many heads of keys each has in all layers."""
    found: dict[Attention, int] = {}
    for own in spec.attentions:
        shape = shape_of(own)
        found[shape] = found.get(shape, 0) + (own.kv_heads if own.shares is None else 0)
    return found


def _head_block_bytes(shape: Attention, kv_type: str) -> int:
    """A block of one head."""
    head_dim = round_up(shape.head_dim, 16)
    if shape.latent:
        return KV_BLOCK * head_dim * 2
    if kv_type == "f16":
        return KV_BLOCK * 2 * head_dim * 2
    key_bytes, value_bytes = round_up(shape.head_dim, 4), head_dim
    if kv_type == "q4":
        key_bytes = value_bytes = round_up(shape.head_dim, SCALED) // 2
    return KV_BLOCK * (key_bytes + 2 * -(-shape.head_dim // SCALED) + value_bytes + 2)


def shape_of(attention: Attention) -> Attention:
    """What layers of one shape share: the attention without its weights."""
    none = Matrix("", 0, 0)
    return replace(
        attention, query=none, key=none, value=none, output=none, query_norm=None, key_norm=None,
        value_norm=None, sinks="", gate=None, shares=None,
    )  # fmt: skip


def num_spans(spec: ModelSpec, context_length: int) -> int:
    """Spans that a row may see, one more where there are sinks."""
    return -(-context_length // SPAN) + any(each.sinks for each in spec.attentions)
