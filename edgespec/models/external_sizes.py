"""The layers of a model that only an external engine runs, as far as planning needs them."""

from __future__ import annotations

from edgespec.models.layers import Attention, Dense, LayerSpec, Matrix


def external_layers(
    count: int, *, dim: int, heads: int, kv_heads: int, head_dim: int, ffn_dim: int
) -> tuple[LayerSpec, ...]:
    """Layers all alike, of these sizes; what does not concern sizes says nothing about the model.

    Its matrices name no tensors.
    """
    queries, pairs = heads * head_dim, kv_heads * head_dim
    attention = Attention(
        heads,
        kv_heads,
        head_dim,
        query=Matrix("", queries, dim),
        key=Matrix("", pairs, dim),
        value=Matrix("", pairs, dim),
        output=Matrix("", dim, queries),
        rope=None,
        scale=1.0,
    )
    inner, outer = Matrix("", ffn_dim, dim), Matrix("", dim, ffn_dim)
    return (LayerSpec(attention, Dense(ffn_dim, gate=inner, up=inner, down=outer)),) * count
