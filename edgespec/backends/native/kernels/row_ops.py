"""Row operations as explicit vectors: norm, quantise, gate, softmax, and the two inner loops of
attention.

Each is emitted as LLVM text, to be compiled for the instruction set in use. Vectors of 16 lanes and
a fixed order of operations make a row's result a function of the row alone, on every instruction
set. All take eight 64-bit integers; the unused are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from llvmlite import ir

from edgespec.backends.native.kernels import tile
from edgespec.backends.native.kernels.emit import (
    F32,
    I32,
    LANES,
    V16F32,
    V16I8,
    V16I32,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.machine_code import Processor, compile_function
from edgespec.backends.native.kernels.maxima import maxima

NUM_ARGUMENTS = 8
ROW_SIZES = (8, 4, 2, 1)
"""Query rows one attention function handles at once, largest first."""


def _floats(value: float) -> Value:
    return ir.Constant(V16F32, [ir.Constant(F32, value)] * LANES)


def _start(name: str) -> Emitter:
    return Emitter(name, NUM_ARGUMENTS)


def _finish(emitter: Emitter) -> Function:
    return emitter.done()


def _sum_lanes(emitter: Emitter, vector: Value) -> Value:
    """The 16 lanes' sum, in halves: 8 + 8, 4 + 4, ... (the same order everywhere)."""
    builder = emitter.builder
    width = LANES
    while width > 1:
        width //= 2
        kind = ir.VectorType(I32, width)
        low, high = (
            builder.shuffle_vector(
                vector,
                vector,
                ir.Constant(kind, [ir.Constant(I32, first + i) for i in range(width)]),
            )
            for first in (0, width)
        )
        add = builder.fadd if vector.type.element == F32 else builder.add
        vector = add(low, high)
    return builder.extract_element(vector, ir.Constant(I32, 0))


def _max_lanes(emitter: Emitter, vector: Value) -> Value:
    return emitter.call("llvm.vector.reduce.fmax.v16f32", F32, [vector])


_ROUND = 12582912.0
"""1.5 * 2**23: adding and subtracting it rounds a small float to the nearest integer, ties to even.
"""


def _exp(emitter: Emitter, x: Value) -> Value:
    """e**x to about 1 ulp for x <= 88; below -87 it is 0 or nearly so.

    Range reduction by ln 2 in two parts and a polynomial of degree 6 (as in Cephes' expf).
    """
    builder = emitter.builder
    low = builder.fcmp_ordered("<", x, _floats(-87.0))
    x = builder.select(low, _floats(-87.0), x)
    shifted = builder.fadd(builder.fmul(x, _floats(1.4426950408889634)), _floats(_ROUND))
    power = builder.fsub(shifted, _floats(_ROUND))
    rest = emitter.fma(power, _floats(-0.693359375), x)
    rest = emitter.fma(power, _floats(2.12194440e-4), rest)
    series = _floats(1.9875691500e-4)
    for term in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0e-1):
        series = emitter.fma(series, rest, _floats(term))
    series = emitter.fma(builder.fmul(rest, rest), series, builder.fadd(rest, _floats(1.0)))
    exponent = builder.shl(builder.bitcast(shifted, V16I32), emitter.constant(23))
    scaled = builder.bitcast(builder.add(builder.bitcast(series, V16I32), exponent), V16F32)
    return builder.select(low, emitter.zero(), scaled)


def rms_norm() -> Function:
    """(input, weight, output, vectors, epsilon bits): output = input / rms(input) * weight."""
    emitter = _start("rms_norm")
    builder = emitter.builder
    source, weight, target, count, epsilon = emitter.arguments[:5]
    (total,) = emitter.running(1)
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        builder.store(emitter.fma(value, value, builder.load(total)), total)
    length = builder.sitofp(builder.mul(count, emitter.integer(LANES)), F32)
    mean = builder.fdiv(_sum_lanes(emitter, builder.load(total)), length)
    small = builder.bitcast(builder.trunc(epsilon, I32), F32)
    root = emitter.call("llvm.sqrt.f32", F32, [builder.fadd(mean, small)])
    scale = emitter.splat(builder.fdiv(ir.Constant(F32, 1.0), root))
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        gain = emitter.load(emitter.address(weight, (index, 64)), V16F32, 4)
        place = emitter.address(target, (index, 64))
        emitter.store(builder.fmul(builder.fmul(value, scale), gain), place)
    return _finish(emitter)


def quantise() -> Function:
    """(input f32, output i8, planes, plane stride, blocks): see `tile.py` for the planes."""
    emitter = _start("quantise")
    builder = emitter.builder
    source, target, planes, plane_stride, count = emitter.arguments[:5]
    with emitter.loop(count) as index:
        base = emitter.address(source, (index, 4 * tile.BLOCK))
        halves = [emitter.load(emitter.address(base, 64 * i), V16F32, 4) for i in range(2)]
        sizes = [emitter.call("llvm.fabs.v16f32", V16F32, [half]) for half in halves]
        largest = _max_lanes(emitter, emitter.call("llvm.maxnum.v16f32", V16F32, sizes))
        scale = builder.fmul(largest, ir.Constant(F32, 1.0 / 127.0))
        empty = builder.fcmp_ordered("==", scale, ir.Constant(F32, 0.0))
        inverse = builder.fdiv(ir.Constant(F32, 1.0), scale)
        factor = emitter.splat(builder.select(empty, ir.Constant(F32, 0.0), inverse))
        sums = []
        for i, half in enumerate(halves):
            rounded = builder.fadd(builder.fmul(half, factor), _floats(_ROUND))
            whole = builder.sub(
                builder.bitcast(rounded, V16I32), builder.bitcast(_floats(_ROUND), V16I32)
            )
            emitter.store(
                builder.trunc(whole, V16I8), emitter.address(target, (index, 32), 16 * i), 1
            )
            sums.append(_sum_lanes(emitter, whole))
        total = builder.add(sums[0], sums[1])
        meta = emitter.address(planes, (index, 4))
        values = {
            tile.SCALE: scale,
            tile.START_128: builder.mul(total, ir.Constant(I32, -128)),
            tile.START_8: builder.mul(total, ir.Constant(I32, -8)),
            tile.START_32_LOW: builder.mul(sums[0], ir.Constant(I32, -32)),
            tile.START_32_HIGH: builder.mul(sums[1], ir.Constant(I32, -32)),
            tile.START_16: builder.mul(total, ir.Constant(I32, -16)),
            tile.SUM: builder.fmul(scale, builder.sitofp(total, F32)),
        }
        for plane, value in values.items():
            emitter.store(value, emitter.address(meta, (plane, plane_stride)))
    return _finish(emitter)


def gate() -> Function:
    """(gate, up, output, vectors): output = silu(gate) * up."""
    emitter = _start("gate")
    builder = emitter.builder
    left, right, target, count = emitter.arguments[:4]
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(left, (index, 64)), V16F32, 4)
        up = emitter.load(emitter.address(right, (index, 64)), V16F32, 4)
        negative = builder.fneg(value)
        beyond = builder.fcmp_ordered(">", negative, _floats(88.0))
        power = _exp(emitter, builder.select(beyond, _floats(88.0), negative))
        bottom = builder.select(beyond, _floats(float("inf")), builder.fadd(power, _floats(1.0)))
        place = emitter.address(target, (index, 64))
        emitter.store(builder.fmul(builder.fdiv(value, bottom), up), place)
    return _finish(emitter)


def softmax() -> Function:
    """(scores, vectors, output f32): scores become e**(score - max); the output is 1 / their sum.

    The caller pads the last vector with minus infinity.
    """
    emitter = _start("softmax")
    builder = emitter.builder
    scores, count, target = emitter.arguments[:3]
    largest, total = emitter.running(2)
    builder.store(_floats(float("-inf")), largest)
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(scores, (index, 64)), V16F32, 4)
        best = emitter.call("llvm.maxnum.v16f32", V16F32, [builder.load(largest), value])
        builder.store(best, largest)
    peak = emitter.splat(_max_lanes(emitter, builder.load(largest)))
    with emitter.loop(count) as index:
        place = emitter.address(scores, (index, 64))
        value = _exp(emitter, builder.fsub(emitter.load(place, V16F32, 4), peak))
        emitter.store(value, place)
        builder.store(builder.fadd(builder.load(total), value), total)
    whole = _sum_lanes(emitter, builder.load(total))
    emitter.store(builder.fdiv(ir.Constant(F32, 1.0), whole), target)
    return _finish(emitter)


def rotate(interleaved: bool) -> Function:
    """(input, cosines, sines, output, vectors of 16 pairs, vectors after them, factor bits): RoPE.

    The pairs are (i, i + half), or (2 i, 2 i + 1) where `interleaved`; every output, the values
    after the pairs too, is multiplied by the factor.
    """
    emitter = _start("rotate_pairs" if interleaved else "rotate_halves")
    builder = emitter.builder
    source, cosines, sines, target, pairs, after, bits = emitter.arguments[:7]
    factor = emitter.splat(builder.bitcast(builder.trunc(bits, I32), F32))
    half = builder.mul(pairs, emitter.integer(64))
    with emitter.loop(pairs) as index:
        if interleaved:
            places = [(index, 128), (index, 128)]
            offsets = [emitter.integer(0), emitter.integer(64)]
        else:
            places, offsets = [(index, 64), (index, 64)], [emitter.integer(0), half]
        ends = list(zip(places, offsets, strict=True))
        first, second = (
            emitter.load(emitter.address(source, place, offset), V16F32, 4)
            for place, offset in ends
        )
        if interleaved:
            first, second = _shuffle(emitter, first, second, lambda i, part: 2 * i + part)
        cosine = emitter.load(emitter.address(cosines, (index, 64)), V16F32, 4)
        sine = emitter.load(emitter.address(sines, (index, 64)), V16F32, 4)
        real = builder.fsub(builder.fmul(first, cosine), builder.fmul(second, sine))
        imaginary = builder.fadd(builder.fmul(first, sine), builder.fmul(second, cosine))
        if interleaved:
            real, imaginary = _shuffle(
                emitter, real, imaginary, lambda i, part: i // 2 + 8 * part + LANES * (i % 2)
            )
        for value, (place, offset) in zip((real, imaginary), ends, strict=True):
            emitter.store(builder.fmul(value, factor), emitter.address(target, place, offset))
    start = builder.mul(pairs, emitter.integer(128))
    with emitter.loop(after) as index:
        value = emitter.load(emitter.address(source, start, (index, 64)), V16F32, 4)
        emitter.store(builder.fmul(value, factor), emitter.address(target, start, (index, 64)))
    return _finish(emitter)


def _shuffle(
    emitter: Emitter, left: Value, right: Value, lane: Callable[[int, int], int]
) -> tuple[Value, Value]:
    """Two vectors made of two: lane i of part p is lane `lane(i, p)` of both, side by side."""
    kind = ir.VectorType(I32, LANES)
    first, second = (
        emitter.builder.shuffle_vector(
            left, right, ir.Constant(kind, [ir.Constant(I32, lane(i, part)) for i in range(LANES)])
        )
        for part in range(2)
    )
    return first, second


def scores(num_rows: int) -> Function:
    """(queries, query stride, keys f16 [head_dim, 16], head_dim, output, output stride): 16 dot
    products a row.
    """
    emitter = _start(f"scores_{num_rows}")
    builder = emitter.builder
    queries, query_stride, keys, head_dim, target, target_stride = emitter.arguments[:6]
    sums = emitter.running(num_rows)
    with emitter.loop(head_dim) as index:
        column = emitter.half_vector(emitter.address(keys, (index, 2 * LANES)))
        for row, slot in enumerate(sums):
            place = emitter.address(queries, (row, query_stride), (index, 4))
            value = emitter.splat_load(place, F32)
            builder.store(emitter.fma(value, column, builder.load(slot)), slot)
    for row, slot in enumerate(sums):
        emitter.store(builder.load(slot), emitter.address(target, (row, target_stride)))
    return _finish(emitter)


def mix(num_rows: int) -> Function:
    """(weights f32, weight stride, values f16, value stride, keys, output, output stride, vectors a
    row).

    Adds weight[row, key] * value[key] to the output, key after key.
    """
    emitter = _start(f"mix_{num_rows}")
    builder = emitter.builder
    weights, weight_stride, values, value_stride, count, target, target_stride, vectors = (
        emitter.arguments
    )
    with emitter.loop(vectors) as chunk:
        places = [
            emitter.address(target, (row, target_stride), (chunk, 64)) for row in range(num_rows)
        ]
        sums = emitter.running(num_rows)
        for place, slot in zip(places, sums, strict=True):
            builder.store(emitter.load(place, V16F32, 4), slot)
        with emitter.loop(count) as key:
            value = emitter.half_vector(
                emitter.address(values, (key, value_stride), (chunk, 2 * LANES))
            )
            for row, slot in enumerate(sums):
                place = emitter.address(weights, (row, weight_stride), (key, 4))
                weight = emitter.splat_load(place, F32)
                builder.store(emitter.fma(weight, value, builder.load(slot)), slot)
        for place, slot in zip(places, sums, strict=True):
            emitter.store(builder.load(slot), place)
    return _finish(emitter)


@cache
def table(interleaved: bool, processor: Processor) -> tuple[int, ...]:
    """All addresses in the order `table.py` names them."""
    attention = [function(size) for function in (scores, mix) for size in ROW_SIZES]
    first = (rms_norm(), quantise(), gate(), softmax(), rotate(interleaved))
    functions = (*first, *attention, maxima())
    return tuple(compile_function(*function, processor) for function in functions)
