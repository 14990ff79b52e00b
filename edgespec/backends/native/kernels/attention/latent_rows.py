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

    Sums have 16 lanes everywhere; with smaller vectors, fewer rows are computed at a time.
    """
    emitter = Emitter(f"scores_latent_{num_rows}", NUM_LOOP_ARGUMENTS)
    queries, keys, tile_bytes, tiles, vectors, _, target, ahead, share = emitter.arguments[:9]
    builder, together = emitter.builder, max(1, num_rows * lanes // LANES)
    width = at_once(together * LANES // lanes, lanes)
    key_bytes, query_bytes = (builder.mul(vectors, emitter.integer(size)) for size in (32, 64))
    groups = TILE // width
    with emitter.loop(tiles) as tile, emitter.loop(emitter.integer(groups)) as group:
        offset = builder.mul(group, emitter.integer(width))
        first_key = emitter.address(keys, (tile, tile_bytes), (offset, key_bytes))
        for first in range(0, num_rows, together):
            rows = range(first, min(first + together, num_rows))
            sums = {row: emitter.running(width) for row in rows}
            with emitter.loop(vectors) as index:
                columns = [
                    emitter.half_vector(emitter.address(first_key, (i, key_bytes), (index, 32)))
                    for i in range(width)
                ]
                for row, slots in sums.items():
                    place = emitter.address(queries, (row, query_bytes), (index, 64))
                    query = emitter.load(place, emitter.f32, 4)
                    for column, slot in zip(columns, slots, strict=True):
                        builder.store(emitter.fma(query, column, builder.load(slot)), slot)
                if first == 0:
                    step = emitter.address(group, (tile, groups))
                    step = emitter.address(index, (step, vectors))
                    emitter.prefetch_share(ahead, step, 32 * width, share)
            for row, slots in sums.items():
                for i, slot in enumerate(slots):
                    place = emitter.address(
                        target, (tile, 4 * TILE), (offset, 4), row * SCORES_STRIDE + 4 * i
                    )
                    emitter.store(sum_lanes(emitter, builder.load(slot)), place)
    return emitter.done()
