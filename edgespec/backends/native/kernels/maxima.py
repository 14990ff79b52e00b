"""The maxima of tiles of logits: a row operation, called while the head writes the logits.

With them, choosing a token reads a sixteenth of a row and a few tiles of it
(`verification/best_tokens.py`).
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import (
    F32,
    I1,
    I32,
    LANES,
    V16F32,
    V16I32,
    Emitter,
    Function,
    Value,
)


def _larger(emitter: Emitter, left: Value, right: Value, *lanes: list[int]) -> Value:
    """The larger of two selections from the 32 lanes of two vectors; not to be given a NaN."""
    builder = emitter.builder
    one, two = (
        builder.shuffle_vector(
            left,
            right,
            ir.Constant(ir.VectorType(I32, len(places)), [ir.Constant(I32, i) for i in places]),
        )
        for places in lanes
    )
    return builder.select(builder.fcmp_ordered(">", one, two), one, two)


def _maxima_of_4(emitter: Emitter, tiles: list[Value]) -> Value:
    """The largest lane of each of 4 vectors, in their order.

    Every round halves the lanes that are still in question. The vectors are merged first, so that
    the four together take 15 operations, and not 4 times 8.
    """
    low = [lane for lane in range(32) if lane & 8 == 0]
    high = [lane for lane in range(32) if lane & 8]
    halves = [_larger(emitter, *tiles[i : i + 2], low, high) for i in (0, 2)]
    low = [lane for lane in range(32) if lane & 4 == 0]
    high = [lane for lane in range(32) if lane & 4]
    quarters = _larger(emitter, *halves, low, high)
    pairs = _larger(emitter, quarters, quarters, [*range(0, 16, 2)], [*range(1, 16, 2)])
    return _larger(emitter, pairs, pairs, [*range(0, 8, 2)], [*range(1, 8, 2)])


@cache
def maxima() -> Function:
    """(logits, row stride, rows, tiles, valid, output, output stride): the largest of each tile of
    16 logits; NaN where one is. Only the first `valid` logits of a row count.
    """
    emitter = Emitter("maxima", 8)
    builder = emitter.builder
    source, stride, num_rows, num_tiles, valid, target, target_stride = emitter.arguments[:7]
    lanes = ir.Constant(V16I32, [ir.Constant(I32, lane) for lane in range(LANES)])
    lowest = ir.Constant(V16F32, [ir.Constant(F32, float("-inf"))] * LANES)

    def one_by_one(row: Value, first: Value, count: Value) -> None:
        with emitter.loop(count) as index:
            tile = builder.add(first, index)
            value = emitter.load(emitter.address(source, (row, stride), (tile, 64)), V16F32, 4)
            left = builder.sub(valid, builder.mul(tile, emitter.integer(LANES)))
            counts = builder.icmp_signed("<", lanes, emitter.splat(builder.trunc(left, I32)))
            value = builder.select(counts, value, lowest)
            largest = emitter.call("llvm.vector.reduce.fmaximum.v16f32", F32, [value])
            emitter.store(largest, emitter.address(target, (row, target_stride), (tile, 4)))

    whole = builder.ashr(valid, emitter.integer(4))
    fewer = builder.icmp_signed("<", whole, num_tiles)
    num_groups = builder.ashr(builder.select(fewer, whole, num_tiles), emitter.integer(2))
    done = builder.shl(num_groups, emitter.integer(2))
    with emitter.loop(num_rows) as row:
        with emitter.loop(num_groups) as group:
            place = emitter.address(source, (row, stride), (group, 4 * 64))
            tiles = [emitter.load(emitter.address(place, 64 * i), V16F32, 4) for i in range(4)]
            found = _maxima_of_4(emitter, tiles)
            emitter.store(found, emitter.address(target, (row, target_stride), (group, 4 * 4)))
            odd = [builder.fcmp_unordered("uno", *tiles[i : i + 2]) for i in (0, 2)]
            some = emitter.call("llvm.vector.reduce.or.v16i1", I1, [builder.or_(*odd)])
            with builder.if_then(some, likely=False):
                one_by_one(row, builder.shl(group, emitter.integer(2)), emitter.integer(4))
        one_by_one(row, done, builder.sub(num_tiles, done))
    return emitter.done()
