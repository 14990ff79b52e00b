"""How keys and values become q4: halves of bytes of number + 8 and f16 scales.

The number that is largest in size becomes -8, so a scale has that number's sign turned round; its
own sign may be either. Scales end at 65504. Numbers that are none become some bits: one position
cannot spoil what others see.
"""

from __future__ import annotations

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import (
    F16,
    F32,
    I32,
    LANES,
    V16I8,
    V16I32,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.codegen.vectors import larger, load_first, max_lanes, nearest
from edgespec.backends.native.kernels.row_ops import start
from edgespec.memory.kv.arena import SCALED, TILE

_MOST = 65504.0


def _scale(emitter: Emitter, most: Value, least: Value) -> tuple[Value, Value]:
    """The f16 nearest to the number of the largest size / -8, and one over it; `least` is the
    largest number with all signs turned.
    """
    builder = emitter.builder
    below = builder.fcmp_ordered(">", least, most)
    wished = builder.fmul(builder.select(below, least, most), ir.Constant(F32, 0.125))
    limit = ir.Constant(F32, _MOST)
    wished = builder.select(builder.fcmp_ordered("<", wished, limit), wished, limit)
    wished = builder.select(below, wished, builder.fneg(wished))
    scale = builder.fptrunc(wished, F16)
    wide = builder.fpext(scale, F32)
    empty = builder.fcmp_ordered("==", wide, ir.Constant(F32, 0.0))
    inverse = builder.fdiv(ir.Constant(F32, 1.0), wide)
    return scale, emitter.splat(builder.select(empty, ir.Constant(F32, 0.0), inverse))


def _extremes(emitter: Emitter, source: Value, count: Value) -> tuple[Value, Value]:
    """The largest of `count` floats at an address, and with signs turned; 0 at least."""
    builder, slots = emitter.builder, emitter.running(2)
    with emitter.loop(emitter.groups(count, LANES)) as index:
        left = emitter.address(count, (index, -LANES))
        value = load_first(emitter, emitter.address(source, (index, 4 * LANES)), left)
        for slot, other in zip(slots, (value, builder.fneg(value)), strict=True):
            builder.store(larger(emitter, other, builder.load(slot)), slot)
    most, least = (max_lanes(emitter, builder.load(slot)) for slot in slots)
    return most, least


def _packed(emitter: Emitter, source: Value, left: Value, factor: Value) -> Value:
    """The 32 floats at an address, of which `left` are there, times a factor as 16 bytes: the first
    16 in the low halves.
    """
    builder, halves = emitter.builder, []
    for half in range(2):
        place = emitter.address(source, 64 * half)
        value = load_first(emitter, place, emitter.address(left, -16 * half))
        numbers = nearest(emitter, builder.fmul(value, factor))
        for name, limit in {"smin": 7, "smax": -8}.items():
            other = emitter.constant(limit)
            numbers = emitter.call(f"llvm.{name}.v16i32", V16I32, [numbers, other])
        halves.append(builder.add(numbers, emitter.constant(8)))
    high = builder.shl(halves[1], emitter.constant(4))
    return builder.trunc(builder.or_(halves[0], high), V16I8)


def store_key() -> Function:
    """(key f32, place, scale's place, head_dim): one position's key of one head."""
    emitter = start("store_key_q4")
    builder = emitter.builder
    source, place, scale_place, head_dim = emitter.arguments[:4]
    with emitter.loop(emitter.groups(head_dim, SCALED)) as block:
        start_at = emitter.address(source, (block, 4 * SCALED))
        left = emitter.address(head_dim, (block, -SCALED))
        few = builder.icmp_signed("<", left, emitter.integer(SCALED))
        count = builder.select(few, left, emitter.integer(SCALED))
        scale, factor = _scale(emitter, *_extremes(emitter, start_at, count))
        emitter.store(scale, emitter.address(scale_place, (block, 2 * TILE)), 2)
        octets = _packed(emitter, start_at, left, factor)
        fours = builder.bitcast(octets, ir.VectorType(I32, 4))
        for i in range(4):
            four = builder.extract_element(fours, ir.Constant(I32, i))
            emitter.store(four, emitter.address(place, (block, 256), 64 * i))
    return emitter.done()


def store_value() -> Function:
    """(value f32, place, scale's place, head_dim): one position's value of one head."""
    emitter = start("store_value_q4")
    builder = emitter.builder
    source, place, scale_place, head_dim = emitter.arguments[:4]
    scale, factor = _scale(emitter, *_extremes(emitter, source, head_dim))
    emitter.store(scale, scale_place, 2)
    with emitter.loop(emitter.groups(head_dim, SCALED)) as block:
        left = emitter.address(head_dim, (block, -SCALED))
        start_at = emitter.address(source, (block, 4 * SCALED))
        octets = _packed(emitter, start_at, left, factor)
        for lane in range(16):
            octet = builder.extract_element(octets, ir.Constant(I32, lane))
            emitter.store(octet, emitter.address(place, (block, 64), 4 * lane), 1)
    return emitter.done()
