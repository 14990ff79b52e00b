"""Scores over latent rows: a position's key and value are one row, [head_dim] f16.

Mixing reads rows as it does those of values. Scores have their lanes in dimensions instead of
positions, so that the same bytes serve both; each is the sum of a row's lanes, in one fixed order,
whatever slot the key lies in.
"""

from __future__ import annotations

from edgespec.backends.native.kernels.attention.spans import (
    NUM_LOOP_ARGUMENTS,
    SCORES_STRIDE,
    at_once,
)
from edgespec.backends.native.kernels.codegen.emit import LANES, Emitter, Function
from edgespec.backends.native.kernels.codegen.vectors import sum_lanes
from edgespec.memory.kv.arena import TILE


def scores(num_rows: int, lanes: int) -> Function:
    """(queries f32 [12, head_dim], keys, bytes of a tile, tiles, vectors of 16 dimensions, -,
    scores, ahead, share): each row's dot products with the 16 keys of each tile.
    """
    emitter = Emitter(f"scores_latent_{num_rows}", NUM_LOOP_ARGUMENTS, lanes)
    queries, keys, tile_bytes, tiles, vectors, _, target, ahead, share = emitter.arguments[:9]
    builder, width = emitter.builder, at_once(num_rows, lanes)
    strips = builder.mul(vectors, emitter.integer(LANES // lanes))
    row_bytes = builder.mul(vectors, emitter.integer(2 * LANES))
    group_bytes = builder.mul(row_bytes, emitter.integer(width))
    with (
        emitter.loop(tiles) as tile,
        emitter.loop(emitter.integer(TILE // width)) as group,
    ):
        first = emitter.address(keys, (tile, tile_bytes), (group, group_bytes))
        sums = [emitter.running(width) for _ in range(num_rows)]
        with emitter.loop(strips) as strip:
            columns = [
                emitter.half_vector(emitter.address(first, (i, row_bytes), (strip, 2 * lanes)))
                for i in range(width)
            ]
            for row, slots in enumerate(sums):
                place = emitter.address(
                    queries, (row, builder.mul(row_bytes, emitter.integer(2))), (strip, 4 * lanes)
                )
                query = emitter.load(place, emitter.f32, 4)
                for column, slot in zip(columns, slots, strict=True):
                    builder.store(emitter.fma(query, column, builder.load(slot)), slot)
            step = emitter.address(strip, (emitter.address(group, (tile, TILE // width)), strips))
            emitter.prefetch_share(ahead, step, 2 * lanes * width, share)
        for row, slots in enumerate(sums):
            for i, slot in enumerate(slots):
                place = emitter.address(
                    target, (tile, 4 * TILE), (group, 4 * width), row * SCORES_STRIDE + 4 * i
                )
                emitter.store(sum_lanes(emitter, builder.load(slot)), place)
    return emitter.done()
