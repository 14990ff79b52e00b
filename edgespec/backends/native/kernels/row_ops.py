"""Row operations as explicit vectors: norm, quantise, gate; those of attention have their own file.

Each is emitted as LLVM text, to be compiled for the instruction set in use. Vectors of 16 lanes and
a fixed order of operations make a row's result a function of the row alone, on every instruction
set. All take eight 64-bit integers; the unused are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import (
    F32,
    I32,
    LANES,
    V16F32,
    V16I8,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.codegen.vectors import (
    max_lanes,
    nearest,
    one_plus_exp,
    sum_lanes,
)
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.maxima import maxima
from edgespec.backends.native.kernels.table import NUM_ROW_ARGUMENTS as NUM_ARGUMENTS


def start(name: str) -> Emitter:
    return Emitter(name, NUM_ARGUMENTS)


def rms_norm() -> Function:
    """(input, weight, output, vectors, epsilon bits): output = input / rms(input) * weight."""
    emitter = start("rms_norm")
    builder = emitter.builder
    source, weight, target, count, epsilon = emitter.arguments[:5]
    (total,) = emitter.running(1)
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        builder.store(emitter.fma(value, value, builder.load(total)), total)
    length = builder.sitofp(builder.mul(count, emitter.integer(LANES)), F32)
    mean = builder.fdiv(sum_lanes(emitter, builder.load(total)), length)
    small = builder.bitcast(builder.trunc(epsilon, I32), F32)
    root = emitter.call("llvm.sqrt.f32", F32, [builder.fadd(mean, small)])
    scale = emitter.splat(builder.fdiv(ir.Constant(F32, 1.0), root))
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        gain = emitter.load(emitter.address(weight, (index, 64)), V16F32, 4)
        place = emitter.address(target, (index, 64))
        emitter.store(builder.fmul(builder.fmul(value, scale), gain), place)
    return emitter.done()


def quantise() -> Function:
    """(input f32, output i8, planes, plane stride, blocks): see `matmul/tile.py` for the planes."""
    emitter = start("quantise")
    builder = emitter.builder
    source, target, planes, plane_stride, count = emitter.arguments[:5]
    with emitter.loop(count) as index:
        base = emitter.address(source, (index, 4 * tile.BLOCK))
        halves = [emitter.load(emitter.address(base, 64 * i), V16F32, 4) for i in range(2)]
        sizes = [emitter.call("llvm.fabs.v16f32", V16F32, [half]) for half in halves]
        largest = max_lanes(emitter, emitter.call("llvm.maxnum.v16f32", V16F32, sizes))
        scale = builder.fmul(largest, ir.Constant(F32, 1.0 / 127.0))
        empty = builder.fcmp_ordered("==", scale, ir.Constant(F32, 0.0))
        inverse = builder.fdiv(ir.Constant(F32, 1.0), scale)
        factor = emitter.splat(builder.select(empty, ir.Constant(F32, 0.0), inverse))
        sums = []
        for i, half in enumerate(halves):
            whole = nearest(emitter, builder.fmul(half, factor))
            emitter.store(
                builder.trunc(whole, V16I8), emitter.address(target, (index, 32), 16 * i), 1
            )
            sums.append(sum_lanes(emitter, whole))
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
    return emitter.done()


def gate() -> Function:
    """(gate, up, output, vectors): output = silu(gate) * up."""
    emitter = start("gate")
    builder = emitter.builder
    left, right, target, count = emitter.arguments[:4]
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(left, (index, 64)), V16F32, 4)
        up = emitter.load(emitter.address(right, (index, 64)), V16F32, 4)
        bottom = one_plus_exp(emitter, builder.fneg(value))
        place = emitter.address(target, (index, 64))
        emitter.store(builder.fmul(builder.fdiv(value, bottom), up), place)
    return emitter.done()


def rotate(interleaved: bool) -> Function:
    """(input, cosines, sines, output, vectors of 16 pairs, vectors after them, factor bits): RoPE.

    The pairs are (i, i + half), or (2 i, 2 i + 1) where `interleaved`; every output, the values
    after the pairs too, is multiplied by the factor.
    """
    emitter = start("rotate_pairs" if interleaved else "rotate_halves")
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
    rest = builder.mul(pairs, emitter.integer(128))
    with emitter.loop(after) as index:
        value = emitter.load(emitter.address(source, rest, (index, 64)), V16F32, 4)
        emitter.store(builder.fmul(value, factor), emitter.address(target, rest, (index, 64)))
    return emitter.done()


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


FUNCTIONS: dict[str, Callable[[], Function]] = {
    "rms_norm": rms_norm,
    "quantise": quantise,
    "gate": gate,
    "rotate_halves": partial(rotate, False),
    "rotate_pairs": partial(rotate, True),
    "maxima": maxima,
}
