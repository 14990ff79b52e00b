"""The inner loops of attention as machine code: scores and mixing over f16 keys and values,
softmax, and putting spans together.

`spans.py` tells what a span is, `memory/kv/arena.py` how keys and values lie, `scaled_kv.py` has
the loops for int8 and q4. Scores and mixing are made for some numbers of rows, their sums in
registers; the order of operations in a row is the same in all of them. These two take twelve 64-bit
integers and, while they compute, ask for memory that is needed next: as many bytes as they read, at
`ahead`, divided by 2**share. The others take eight. Unused ones are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from edgespec.backends.native.kernels.attention import latent_rows, scaled_kv
from edgespec.backends.native.kernels.attention.spans import (
    NUM_LOOP_ARGUMENTS,
    ROW_BLOCK,
    SCORES_STRIDE,
    at_once,
    row_sizes,
    score_sizes,
)
from edgespec.backends.native.kernels.codegen.emit import F32, V16F32, Emitter, Function, Value
from edgespec.backends.native.kernels.codegen.vectors import (
    exp,
    first_lanes,
    floats,
    larger,
    max_lanes,
    sizes,
    store_first,
    sum_lanes,
)
from edgespec.backends.native.kernels.kv import int8_store, q4_store, rotation
from edgespec.backends.native.kernels.kv.forms import FORMS
from edgespec.backends.native.kernels.matmul.integer_tile import Operations
from edgespec.backends.native.kernels.row_ops import start
from edgespec.memory.kv.arena import LATENT, TILE

_CHAINS = 4
"""Running maxima, so that none waits for the one before."""


def scores(num_rows: int, lanes: int) -> Function:
    """(queries f32 [head_dim, 12], keys, bytes of a tile, tiles, pairs of dimensions, -, scores,
    ahead, share): each row's dot products with the 16 keys of each tile, dimension after dimension.
    """
    emitter = Emitter(f"scores_f16_{num_rows}", NUM_LOOP_ARGUMENTS, lanes)
    queries, keys, tile_bytes, tiles, pairs, _, target, ahead, share = emitter.arguments[:9]
    builder, width = emitter.builder, at_once(num_rows, lanes)
    with emitter.loop(emitter.groups(tiles, width)) as group:
        offsets = [
            builder.mul(emitter.address(emitter.integer(i), (group, width)), tile_bytes)
            for i in range(width)
        ]
        for first in range(0, TILE, lanes):
            sums = [emitter.running(width) for _ in range(num_rows)]
            with emitter.loop(pairs) as pair:
                for dim in range(2):
                    columns = [
                        emitter.half_vector(
                            emitter.address(
                                keys, offset, (pair, 4 * TILE), 2 * TILE * dim, 2 * first
                            )
                        )
                        for offset in offsets
                    ]
                    for row, slots in enumerate(sums):
                        place = emitter.address(
                            queries, (pair, 8 * ROW_BLOCK), 4 * ROW_BLOCK * dim + 4 * row
                        )
                        value = emitter.splat_load(place, F32)
                        for column, slot in zip(columns, slots, strict=True):
                            builder.store(emitter.fma(value, column, builder.load(slot)), slot)
                if first == 0:
                    step = emitter.address(pair, (group, pairs))
                    emitter.prefetch_share(ahead, step, 64 * width, share)
            for row, slots in enumerate(sums):
                place = emitter.address(
                    target, (group, 4 * TILE * width), row * SCORES_STRIDE + 4 * first
                )
                for i, slot in enumerate(slots):
                    emitter.store(builder.load(slot), emitter.address(place, 4 * TILE * i))
    return emitter.done()


def mix(num_rows: int, lanes: int) -> Function:
    """(weights f32, values, bytes of a value, slots, output f32, output stride, vectors of 16 in a
    row, ahead, share): add weight[row, slot] * value[slot] to the output, slot after slot.
    """
    emitter = Emitter(f"mix_f16_{num_rows}", NUM_LOOP_ARGUMENTS, lanes)
    weights, values, value_bytes, slots = emitter.arguments[:4]
    output, stride, vectors, ahead, share = emitter.arguments[4:9]
    builder = emitter.builder

    def some(width: int, first: Value) -> None:
        """`width` vectors of each row, from vector `first` on."""
        places = [
            [emitter.address(output, (row, stride), (first, 4 * lanes), 4 * lanes * i)
             for i in range(width)]
            for row in range(num_rows)
        ]  # fmt: skip
        sums = [emitter.running(width) for _ in range(num_rows)]
        for slot, place in zip(sum(sums, []), sum(places, []), strict=True):
            builder.store(emitter.load(place, emitter.f32, 4), slot)
        offset = builder.mul(first, emitter.integer(2 * lanes))
        begin = emitter.address(ahead, builder.lshr(builder.mul(offset, slots), share))
        with emitter.loop(slots) as index:
            value = emitter.address(values, (index, value_bytes), offset)
            columns = [
                emitter.half_vector(emitter.address(value, 2 * lanes * i)) for i in range(width)
            ]
            for row in range(num_rows):
                place = emitter.address(weights, (index, 4), row * SCORES_STRIDE)
                weight = emitter.splat_load(place, F32)
                for column, slot in zip(columns, sums[row], strict=True):
                    builder.store(emitter.fma(weight, column, builder.load(slot)), slot)
            emitter.prefetch_share(begin, index, 2 * lanes * width, share)
        for slot, place in zip(sum(sums, []), sum(places, []), strict=True):
            emitter.store(builder.load(slot), place)

    strips = builder.mul(vectors, emitter.integer(16 // lanes))
    emitter.in_steps(strips, at_once(num_rows, lanes), some)
    return emitter.done()


def softmax(kv_type: str) -> Function:
    """(scores, vectors, maximum f32, sum f32, scales, largest f32): scores become
    e**(score - maximum) in place; their maximum and the sum are told.

    Unless KV is f16, the powers are then multiplied by the scales, and the size of the largest
    product is told. The caller pads the last vector with minus infinity.
    """
    emitter, scaled = start(f"softmax_{kv_type}"), kv_type != "f16"
    builder = emitter.builder
    scores, count, maximum, total, scales, largest = emitter.arguments[:6]
    maxima, (sums, most) = emitter.running(_CHAINS, floats(float("-inf"))), emitter.running(2)

    def look(width: int, first: Value) -> None:
        for i in range(width):
            place = emitter.address(scores, (first, 64), 64 * i)
            value = emitter.load(place, V16F32, 4)
            builder.store(larger(emitter, value, builder.load(maxima[i])), maxima[i])

    emitter.in_steps(count, _CHAINS, look)
    peak = builder.load(maxima[0])
    for other in maxima[1:]:
        peak = larger(emitter, peak, builder.load(other))
    highest = max_lanes(emitter, peak)
    peak = emitter.splat(highest)
    with emitter.loop(count) as index:
        place = emitter.address(scores, (index, 64))
        value = exp(emitter, builder.fsub(emitter.load(place, V16F32, 4), peak))
        builder.store(builder.fadd(builder.load(sums), value), sums)
        if scaled:
            scale = emitter.load(emitter.address(scales, (index, 64)), V16F32, 4)
            value = builder.fmul(value, scale)
            builder.store(larger(emitter, sizes(emitter, value), builder.load(most)), most)
        emitter.store(value, place)
    emitter.store(highest, maximum)
    emitter.store(sum_lanes(emitter, builder.load(sums)), total)
    if scaled:
        emitter.store(max_lanes(emitter, builder.load(most)), largest)
    return emitter.done()


def combine(kv_type: str) -> Function:
    """(mixed [rows, spans, head_dim to 16], row stride, facts f32 [rows, 3, spans to 16], row
    stride, spans, output f32 [rows, head_dim], head_dim, rows): the spans' results together.

    Facts are a span's maximum, sum and, unless KV is f16, what its integers are multiplied by. They
    are overwritten with each span's share.
    """
    emitter, scaled = start(f"combine_{kv_type}"), kv_type != "f16"
    builder = emitter.builder
    mixed, mixed_stride, facts, facts_stride, spans, output, head_dim, rows = emitter.arguments
    vectors, wide = emitter.groups(spans, 16), emitter.groups(head_dim, 16)
    part = builder.udiv(facts_stride, emitter.integer(3))
    with emitter.loop(rows) as row:
        shares = emitter.address(facts, (row, facts_stride))
        (best, total) = emitter.running(2)
        builder.store(floats(float("-inf")), best)

        def maxima(index: Value) -> Value:
            there = first_lanes(emitter, emitter.address(spans, (index, -16)))
            value = emitter.load(emitter.address(shares, (index, 64)), V16F32, 4)
            return builder.select(there, value, floats(float("-inf")))

        with emitter.loop(vectors) as index:
            builder.store(larger(emitter, maxima(index), builder.load(best)), best)
        peak = emitter.splat(max_lanes(emitter, builder.load(best)))
        with emitter.loop(vectors) as index:
            place = emitter.address(shares, (index, 64))
            share = exp(emitter, builder.fsub(maxima(index), peak))
            there = first_lanes(emitter, emitter.address(spans, (index, -16)))
            count = emitter.load(emitter.address(place, part), V16F32, 4)
            count = builder.select(there, count, emitter.zero())
            builder.store(emitter.fma(share, count, builder.load(total)), total)
            if scaled:
                step = emitter.load(emitter.address(place, (part, 2)), V16F32, 4)
                share = builder.fmul(share, step)
            emitter.store(share, place)
        whole = sum_lanes(emitter, builder.load(total))
        inverse = emitter.splat(builder.fdiv(ir.Constant(F32, 1.0), whole))
        with emitter.loop(wide) as chunk:
            (result,) = emitter.running(1)
            with emitter.loop(spans) as span:
                place = emitter.address(mixed, (row, mixed_stride), (chunk, 64))
                place = emitter.address(place, (builder.mul(span, wide), 64))
                if scaled:
                    value = builder.sitofp(emitter.load(place, emitter.i32, 4), V16F32)
                else:
                    value = emitter.load(place, V16F32, 4)
                share = emitter.splat_load(emitter.address(shares, (span, 4)), F32)
                builder.store(emitter.fma(share, value, builder.load(result)), result)
            place = emitter.address(output, (builder.mul(row, head_dim), 4), (chunk, 64))
            value = builder.fmul(builder.load(result), inverse)
            store_first(emitter, value, place, emitter.address(head_dim, (chunk, -16)))
    return emitter.done()


def functions(kv_type: str, operations: Operations) -> dict[str, Callable[[], Function]]:
    """What emits each function of attention over KV of a type, or over latent rows, by the
    function's name; those for rows end in how many they take.
    """
    lanes, numbers = operations.lanes, "f16" if kv_type == LATENT else kv_type
    made: dict[str, Callable[[], Function]] = {
        f"softmax_{numbers}": partial(softmax, numbers),
        f"combine_{numbers}": partial(combine, numbers),
    }
    if numbers == "f16":
        score = latent_rows.scores if kv_type == LATENT else scores
        for size in row_sizes(lanes) if kv_type == LATENT else score_sizes(lanes):
            made[f"scores_{kv_type}_{size}"] = partial(score, size, lanes)
        for size in row_sizes(lanes):
            made[f"mix_f16_{size}"] = partial(mix, size, lanes)
        return made
    form, store = FORMS[kv_type], q4_store if kv_type == "q4" else int8_store
    made[f"turn_{kv_type}"] = partial(rotation.turn, kv_type)
    made[f"store_key_{kv_type}"] = store.store_key
    made[f"store_value_{kv_type}"] = store.store_value
    made[f"put_query_{kv_type}"] = partial(scaled_kv.put_query, form)
    made[f"spread_{kv_type}"] = partial(scaled_kv.spread, form)
    made[f"weigh_{kv_type}"] = partial(scaled_kv.weigh, form, operations)
    for size in row_sizes(lanes, scaled_kv.DIGITS):
        made[f"scores_{kv_type}_{size}"] = partial(scaled_kv.scores, form, size, operations)
        made[f"mix_{kv_type}_{size}"] = partial(scaled_kv.mix, form, size, operations)
    return made
