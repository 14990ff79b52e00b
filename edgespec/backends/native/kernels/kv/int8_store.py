"""How keys and values become int8: bytes of number + 128 and f16 scales, in the arena's places.

A scale is the next f16 that is not below a 127th of the largest number, so nothing is cut off.
Numbers that are none become some byte: one position cannot spoil what others see.
"""

from __future__ import annotations

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import (
    F16,
    F32,
    I8,
    I16,
    I32,
    V16I8,
    V16I32,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.codegen.vectors import (
    larger,
    largest_size,
    load_first,
    max_lanes,
    nearest,
    sizes,
)
from edgespec.backends.native.kernels.row_ops import start
from edgespec.memory.kv.arena import SCALED, TILE

_QUADS = SCALED // 4
"""Quads in a block of dimensions that share a scale."""


def _scale(emitter: Emitter, largest: Value) -> tuple[Value, Value]:
    """The smallest f16 that is at least largest / 127 (65504 at most), and one over it."""
    builder = emitter.builder
    wished = builder.fmul(largest, ir.Constant(F32, 1.0 / 127.0))
    most = ir.Constant(F32, 65504.0)
    wished = builder.select(builder.fcmp_ordered("<", wished, most), wished, most)
    near = builder.fptrunc(wished, F16)
    short = builder.fcmp_ordered("<", builder.fpext(near, F32), wished)
    bits = builder.add(builder.bitcast(near, I16), builder.zext(short, I16))
    scale = builder.bitcast(bits, F16)
    wide = builder.fpext(scale, F32)
    empty = builder.fcmp_ordered("==", wide, ir.Constant(F32, 0.0))
    inverse = builder.fdiv(ir.Constant(F32, 1.0), wide)
    return scale, emitter.splat(builder.select(empty, ir.Constant(F32, 0.0), inverse))


def _bytes(emitter: Emitter, values: Value, factor: Value) -> Value:
    """16 floats times a factor as bytes: the nearest of -127 ... 127, plus 128."""
    builder = emitter.builder
    numbers = nearest(emitter, builder.fmul(values, factor))
    limits = {"smin": 127, "smax": -127}
    for name, limit in limits.items():
        numbers = emitter.call(f"llvm.{name}.v16i32", V16I32, [numbers, emitter.constant(limit)])
    return builder.trunc(builder.add(numbers, emitter.constant(128)), V16I8)


def store_key() -> Function:
    """(key f32, place, scale's place, head_dim): one position's key of one head."""
    emitter = start("store_key_int8")
    builder = emitter.builder
    source, place, scale_place, head_dim = emitter.arguments[:4]
    with emitter.builder.goto_entry_block():
        buffer = builder.ptrtoint(builder.alloca(ir.VectorType(I8, SCALED)), source.type)
    with emitter.loop(emitter.groups(head_dim, SCALED)) as block:
        start_at = emitter.address(source, (block, 4 * SCALED))
        left = emitter.address(head_dim, (block, -SCALED))
        halves = [
            load_first(emitter, emitter.address(start_at, 64 * i), emitter.address(left, -16 * i))
            for i in range(2)
        ]
        largest = larger(emitter, *(sizes(emitter, half) for half in halves))
        scale, factor = _scale(emitter, max_lanes(emitter, largest))
        emitter.store(scale, emitter.address(scale_place, (block, 2 * TILE)), 2)
        for i, half in enumerate(halves):
            emitter.store(_bytes(emitter, half, factor), emitter.address(buffer, 16 * i), 1)
        quads = emitter.groups(left, 4)
        few = builder.icmp_signed("<", quads, emitter.integer(_QUADS))
        with emitter.loop(builder.select(few, quads, emitter.integer(_QUADS))) as index:
            four = emitter.load(emitter.address(buffer, (index, 4)), I32, 1)
            there = emitter.address(place, (block, 64 * _QUADS), (index, 64))
            emitter.store(four, there)
    return emitter.done()


def store_value() -> Function:
    """(value f32, place, scale's place, head_dim): one position's value of one head."""
    emitter = start("store_value_int8")
    builder = emitter.builder
    source, place, scale_place, head_dim = emitter.arguments[:4]
    scale, factor = _scale(emitter, largest_size(emitter, source, head_dim))
    emitter.store(scale, scale_place, 2)
    with emitter.loop(emitter.groups(head_dim, 16)) as index:
        left = emitter.address(head_dim, (index, -16))
        value = load_first(emitter, emitter.address(source, (index, 64)), left)
        octets = _bytes(emitter, value, factor)
        there = emitter.address(place, (index, 64))
        for lane in range(16):
            octet = builder.extract_element(octets, ir.Constant(I32, lane))
            emitter.store(octet, emitter.address(there, 4 * lane), 1)
    return emitter.done()
