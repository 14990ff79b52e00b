"""Attention to latent vectors as stages (`kernels/stages/latent.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.stages import attend, latent
from edgespec.backends.native.stage_maker import Stage, StageMaker
from edgespec.models.layers import LatentAttention


def latent_stages(
    own: LatentAttention, number: int, where: int, maker: StageMaker
) -> Iterator[Stage]:
    """The stages of a layer between its norm and its last product, which reads GATED.

    `number` is the layer's in the arena, `where` the table of its shape.
    """
    place, source = maker.place, table.NORMED
    if own.query_down is not None:
        source = table.GATED
        yield maker.product(own.query_down, table.NORMED, place(source))
        operands = {
            latent.NORMED_INPUT: source,
            latent.NORMED_WIDTH: own.query_down.rows,
            latent.NORM_GAIN: maker.gain(own.query_norm),
        }
        yield maker.stage(latent.norm_input, operands)
    yield maker.input(own.query, source, table.ATTENDED)
    yield maker.product(own.rope_query, source, place(table.UP))
    yield maker.product(own.latent, table.NORMED, place(table.KEY))
    yield maker.product(own.rope_key, table.NORMED, place(table.KEY), 4 * own.latent_dim)
    yield maker.heads(
        own.key_up, table.ATTENDED, place(table.QUERY), own.heads, (own.latent_dim, own.nope_dim),
        head_bytes=4 * (own.latent_dim + own.rope.dim),
    )  # fmt: skip
    placed = {latent.LAYER: number, latent.LATENT_GAIN: maker.gain(own.latent_norm)}
    yield maker.stage(latent.place, placed, where)
    yield maker.stage(attend.attend, {attend.LAYER: number}, where)
    yield maker.stage(attend.finish, {attend.LAYER: number}, where)
    yield maker.heads(
        own.value_up, table.ATTENDED, place(table.GATED), own.heads,
        (own.value_dim, own.latent_dim), into=table.GATED,
    )  # fmt: skip
