"""Heads turned so that no number stands out: the Walsh-Hadamard transform.

A few dimensions of keys and values are many times as large as the others, and few bits for the
large ones leave little for the rest. Turned, each number is a sum of all with signs, so all are
alike. Queries are turned the same way, which changes no dot product, and what values are mixed to
is turned back, which is the same once more. Source: QuaRot (Ashkboos et al., 2024), section 4, for
keys and values of a cache.
"""

from __future__ import annotations

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import (
    F32,
    I32,
    LANES,
    V16F32,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.codegen.vectors import load_first, store_first
from edgespec.backends.native.kernels.row_ops import start


def _within(emitter: Emitter, value: Value, step: int) -> Value:
    """Sums and differences of lanes that are `step` apart, in these lanes."""
    builder = emitter.builder
    order = ir.Constant(ir.VectorType(I32, LANES), [ir.Constant(I32, i ^ step) for i in range(16)])
    signs = [ir.Constant(F32, -1.0 if lane & step else 1.0) for lane in range(LANES)]
    signed = builder.fmul(value, ir.Constant(V16F32, signs))
    return builder.fadd(builder.shuffle_vector(value, value, order), signed)


def turn(kv_type: str) -> Function:
    """(row f32, head_dim): in place, in groups of the largest power of two that divides head_dim;
    lengths stay as they are.
    """
    emitter = start(f"turn_{kv_type}")
    builder = emitter.builder
    row, head_dim = emitter.arguments[:2]
    size = builder.and_(head_dim, builder.neg(head_dim))
    root = emitter.call("llvm.sqrt.f32", F32, [builder.sitofp(size, F32)])
    factor = emitter.splat(builder.fdiv(ir.Constant(F32, 1.0), root))
    with emitter.loop(emitter.groups(head_dim, LANES)) as index:
        place, left = emitter.address(row, (index, 64)), emitter.address(head_dim, (index, -LANES))
        value = load_first(emitter, place, left)
        for step in (1, 2, 4, 8):
            reached = builder.icmp_signed("<", emitter.integer(step), size)
            value = builder.select(reached, _within(emitter, value, step), value)
        store_first(emitter, builder.fmul(value, factor), place, left)
    whole = builder.lshr(size, emitter.integer(4))
    pairs = builder.lshr(head_dim, emitter.integer(5))
    with emitter.loop(_logarithm(emitter, whole)) as stage:
        apart = builder.shl(emitter.integer(1), stage)
        with emitter.loop(pairs) as pair:
            first = builder.shl(builder.lshr(pair, stage), builder.add(stage, emitter.integer(1)))
            first = builder.add(first, builder.and_(pair, builder.sub(apart, emitter.integer(1))))
            places = [emitter.address(row, (first, 64))]
            places.append(emitter.address(places[0], (apart, 64)))
            one, two = (emitter.load(place, V16F32, 4) for place in places)
            emitter.store(builder.fadd(one, two), places[0])
            emitter.store(builder.fsub(one, two), places[1])
    return emitter.done()


def _logarithm(emitter: Emitter, power: Value) -> Value:
    """Of a power of two, to base 2; 0 of 0."""
    zeros = emitter.call("llvm.cttz.i64", power.type, [power, ir.Constant(ir.IntType(1), 0)])
    none = emitter.builder.icmp_signed("==", power, emitter.integer(0))
    return emitter.builder.select(none, emitter.integer(0), zeros)
