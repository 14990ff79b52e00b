"""What an instruction set brings, in vectors of any processor: for those with none of their own."""

from __future__ import annotations

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import I8, I32, Emitter, Value
from edgespec.backends.native.kernels.matmul.integer_tile import Operations


def _dot(
    emitter: Emitter, starts: list[Value], quads: list[Value], rows: list[Value], largest: int
) -> list[Value]:
    """Byte after byte, widened to int32."""
    builder, sums = emitter.builder, []
    for acc, row in zip(starts, rows, strict=True):
        for i, quad in enumerate(quads):
            four = emitter.splat_load(emitter.address(row, 4 * i), I32)
            for bit in range(0, 32, 8):
                weight = builder.lshr(quad, emitter.constant(bit))
                weight = builder.and_(weight, emitter.constant(255))
                value = builder.shl(four, emitter.constant(24 - bit))
                value = builder.ashr(value, emitter.constant(24))
                acc = builder.add(acc, builder.mul(weight, value))
        sums.append(acc)
    return sums


def _lookup(emitter: Emitter, values: bytes, indices: Value) -> Value:
    """One comparison after the other."""
    builder, kind = emitter.builder, ir.VectorType(I8, 4 * emitter.lanes)
    places = builder.bitcast(indices, kind)
    found = ir.Constant(kind, [values[0]] * kind.count)
    for index, value in enumerate(values[1:], 1):
        hit = builder.icmp_unsigned("==", places, ir.Constant(kind, [index] * kind.count))
        found = builder.select(hit, ir.Constant(kind, [value] * kind.count), found)
    return builder.bitcast(found, emitter.i32)


PORTABLE = Operations(lanes=16, dot=_dot, lookup=_lookup)
