"""Whole-vector arithmetic that row operations share: 16 lanes, one order of operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import (
    F32,
    I32,
    I64,
    LANES,
    V16F32,
    V16I32,
    VOID,
    Emitter,
    Value,
)


def floats(value: float) -> Value:
    """The number in all 16 lanes."""
    return ir.Constant(V16F32, [ir.Constant(F32, value)] * LANES)


def _fold(emitter: Emitter, vector: Value, join: Callable[[Value, Value], Value]) -> Value:
    """The 16 lanes joined in halves: 8 and 8, 4 and 4, ... (the same order everywhere)."""
    builder = emitter.builder
    width = LANES
    while width > 1:
        width //= 2
        kind = ir.VectorType(I32, width)
        halves = (
            ir.Constant(kind, [ir.Constant(I32, first + i) for i in range(width)])
            for first in (0, width)
        )
        vector = join(*(builder.shuffle_vector(vector, vector, half) for half in halves))
    return builder.extract_element(vector, ir.Constant(I32, 0))


def sum_lanes(emitter: Emitter, vector: Value) -> Value:
    """The 16 lanes' sum."""
    builder = emitter.builder
    return _fold(emitter, vector, builder.fadd if vector.type.element == F32 else builder.add)


def max_lanes(emitter: Emitter, vector: Value) -> Value:
    """The largest of the 16 lanes.

    Not `llvm.vector.reduce.fmax`: it becomes 15 steps, each waiting for the one before.
    """
    return _fold(emitter, vector, partial(larger, emitter))


_ROUND = 12582912.0
"""1.5 * 2**23: adding and subtracting it rounds a small float to the nearest integer, ties to even.
"""


def nearest(emitter: Emitter, values: Value) -> Value:
    """The nearest int32 of floats below 2**22 in size; of others, some int32."""
    builder = emitter.builder
    rounded = builder.bitcast(builder.fadd(values, floats(_ROUND)), V16I32)
    return builder.sub(rounded, builder.bitcast(floats(_ROUND), V16I32))


_LOG2_E = (1.4426950216293335, 1.925963033500946e-08)
"""The logarithm of e to base 2 as the sum of two f32."""
_POWER = (
    1.5353362054689812e-4,
    1.33988744917807e-3,
    9.618437357746933e-3,
    5.550332470947634e-2,
    2.4022647913624207e-1,
    6.931472028551346e-1,
    1.0,
)
"""2**f for -1/2 <= f <= 1/2, highest power first: off by 2e-9 of the result at most."""


def exp(emitter: Emitter, x: Value) -> Value:
    """e**x to about 1 ulp for x <= 88; 0 below -87."""
    builder = emitter.builder
    shifted = emitter.fma(x, floats(_LOG2_E[0]), floats(_ROUND))
    power = builder.fsub(shifted, floats(_ROUND))
    rest = emitter.fma(x, floats(_LOG2_E[0]), builder.fneg(power))
    rest = emitter.fma(x, floats(_LOG2_E[1]), rest)
    series = floats(_POWER[0])
    for term in _POWER[1:]:
        series = emitter.fma(series, rest, floats(term))
    exponent = builder.shl(builder.bitcast(shifted, V16I32), emitter.constant(23))
    scaled = builder.bitcast(builder.add(builder.bitcast(series, V16I32), exponent), V16F32)
    low = builder.fcmp_ordered("<", x, floats(-87.0))
    return builder.select(low, emitter.zero(), scaled)


def one_plus_exp(emitter: Emitter, x: Value) -> Value:
    """1 + e**x for any x, infinity far above zero: what a sigmoid divides by."""
    builder = emitter.builder
    beyond = builder.fcmp_ordered(">", x, floats(88.0))
    power = exp(emitter, builder.select(beyond, floats(88.0), x))
    return builder.select(beyond, floats(float("inf")), builder.fadd(power, floats(1.0)))


def larger(emitter: Emitter, left: Value, right: Value) -> Value:
    """Lane by lane the larger; `right` where either is no number."""
    return emitter.builder.select(emitter.builder.fcmp_ordered(">", left, right), left, right)


def first_lanes(emitter: Emitter, count: Value) -> Value:
    """A mask of the first `count` lanes, 64-bit and signed: none for less than 1, at most all."""
    builder = emitter.builder
    kind = ir.VectorType(I64, LANES)
    lanes = ir.Constant(kind, [ir.Constant(I64, lane) for lane in range(LANES)])
    return builder.icmp_signed("<", lanes, emitter.splat(count))


def load_first(emitter: Emitter, address: Value, count: Value) -> Value:
    """The first `count` floats at an address, zeros in the other lanes; reads nothing past them."""
    pointer = emitter.builder.inttoptr(address, V16F32.as_pointer())
    align, mask = ir.Constant(I32, 4), first_lanes(emitter, count)
    return emitter.call(
        "llvm.masked.load.v16f32.p0", V16F32, [pointer, align, mask, emitter.zero()]
    )


def store_first(emitter: Emitter, value: Value, address: Value, count: Value) -> None:
    """Write the first `count` lanes and nothing past them."""
    pointer = emitter.builder.inttoptr(address, V16F32.as_pointer())
    align, mask = ir.Constant(I32, 4), first_lanes(emitter, count)
    emitter.call("llvm.masked.store.v16f32.p0", VOID, [value, pointer, align, mask])


def sizes(emitter: Emitter, values: Value) -> Value:
    """Lane by lane without the sign."""
    return emitter.call("llvm.fabs.v16f32", V16F32, [values])


def largest_size(emitter: Emitter, source: Value, count: Value) -> Value:
    """The largest size among `count` floats at an address; 0 if none is a number."""
    builder = emitter.builder
    (best,) = emitter.running(1)
    with emitter.loop(emitter.groups(count, LANES)) as index:
        left = emitter.address(count, (index, -LANES))
        value = load_first(emitter, emitter.address(source, (index, 4 * LANES)), left)
        builder.store(larger(emitter, sizes(emitter, value), builder.load(best)), best)
    return max_lanes(emitter, builder.load(best))
