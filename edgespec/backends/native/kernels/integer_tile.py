"""Tiles of quantised weights: int8 activations, unsigned packed weights, exact integer sums per
block.

One instruction set differs from another only in its `Operations`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgespec.backends.native.kernels import tile
from edgespec.backends.native.kernels.emit import (
    F32,
    I1,
    I32,
    V16F32,
    V16I8,
    V16I32,
    Emitter,
    Value,
)
from edgespec.backends.native.kernels.machine_code import new_module
from edgespec.models.spec import IQ4_NL_VALUES, TensorType

QUADS = tile.BLOCK // 4


@dataclass(frozen=True, slots=True)
class Operations:
    """What an instruction set brings of its own; all else is shared LLVM text."""

    dot: Callable[[Emitter, Value, list[Value], list[Value], int], Value]
    """(emitter, sums, quads of u8 weights, as many quads of i8 activations, largest weight) ->
    sums: 16 lanes of int32 += four products a lane and quad, exactly. A quad is 16 x i32.
    """
    lookup: Callable[[Emitter, bytes, Value], Value]
    """(emitter, 16 bytes, 64 indices 0..15 as 16 x i32) -> the 64 bytes they name."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of quads that share one scale: where its integer sum starts and what it is multiplied
    by.
    """

    quads: list[Value]
    largest: int
    """The largest weight a quad can hold."""
    start_plane: int | None
    scale: Value


@dataclass(frozen=True, slots=True)
class Block:
    """One block of 32 columns of 16 rows, unpacked: its parts and, for types that have one, the
    minimum.
    """

    parts: list[Part]
    minimum: Value | None = None


PREFETCH_BYTES = 4096
"""How far ahead weights are asked for. With several tokens per weight the loop is too slow for the
processor's own prefetcher to run far enough ahead: measured 1.62 to 1.43 in T(8)/T(1) for Q8_0.
"""


def emit_tile(kind: TensorType, num_tokens: int, operations: Operations) -> tuple[str, str]:
    """LLVM text and function name of the tile function for one type and number of tokens."""
    name = f"tile_{kind.name}_{num_tokens}"
    emitter = Emitter(new_module(name), name, tile.NUM_ARGUMENTS)
    weights, scales, activations, planes, output, num_blocks = emitter.arguments[:6]
    activation_stride, row_stride, plane_stride, output_stride, _, accumulate = emitter.arguments[
        6:
    ]
    sums = emitter.running(num_tokens)
    layout = tile.FORMATS[kind].layout
    block_bytes = 64 * layout.bits
    with emitter.loop(num_blocks) as index:
        block = _unpack(emitter, operations, layout, weights, scales, index)
        ahead = emitter.address(weights, (index, block_bytes), PREFETCH_BYTES)
        emitter.prefetch(ahead, block_bytes)
        for token in range(num_tokens):
            row = emitter.address(activations, (token, activation_stride), (index, tile.BLOCK))
            meta = emitter.address(planes, (token, row_stride), (index, 4))
            _add_block(emitter, block, operations, row, meta, plane_stride, sums[token])
    for token in range(num_tokens):
        place = emitter.address(output, (token, output_stride))
        finish(emitter, sums[token], place, accumulate)
    emitter.done()
    return str(emitter.module), name


def _add_block(
    emitter: Emitter,
    block: Block,
    operations: Operations,
    row: Value,
    meta: Value,
    plane_stride: Value,
    slot: Value,
) -> None:
    """Add one block's product with one token to its running float sums."""
    builder = emitter.builder
    total = builder.load(slot)
    scale = emitter.splat_load(meta, F32)
    quad = 0
    for part in block.parts:
        if part.start_plane is None:
            acc = emitter.constant(0)
        else:
            acc = emitter.splat_load(emitter.address(meta, (part.start_plane, plane_stride)), I32)
        fours = [
            emitter.splat_load(emitter.address(row, 4 * (quad + i)), I32)
            for i in range(len(part.quads))
        ]
        acc = operations.dot(emitter, acc, part.quads, fours, part.largest)
        quad += len(part.quads)
        total = emitter.fma(builder.sitofp(acc, V16F32), builder.fmul(part.scale, scale), total)
    if block.minimum is not None:
        block_sum = emitter.splat_load(emitter.address(meta, (tile.SUM, plane_stride)), F32)
        total = emitter.fma(block.minimum, block_sum, total)
    builder.store(total, slot)


def finish(emitter: Emitter, slot: Value, place: Value, accumulate: Value) -> None:
    """Store 16 results, on top of what stands there when `accumulate` is set."""
    builder = emitter.builder
    result = builder.load(slot)
    with builder.if_else(builder.trunc(accumulate, I1)) as (then, otherwise):
        with then:
            emitter.store(builder.fadd(emitter.load(place, V16F32, 4), result), place)
        with otherwise:
            emitter.store(result, place)


def _unpack(
    emitter: Emitter,
    operations: Operations,
    layout: tile.Layout,
    weights: Value,
    scales: Value,
    index: Value,
) -> Block:
    """The block at an index: its quads as unsigned bytes, its scales and minimum as floats."""
    builder = emitter.builder
    base = emitter.address(weights, (index, 64 * layout.bits))
    if layout.bits == 8:
        quads = [emitter.load(emitter.address(base, 64 * i), V16I32, 1) for i in range(QUADS)]
    else:
        quads = _with_high_bits(emitter, layout.bits - 4, _nibbles(emitter, base), base)
    largest = (1 << layout.bits) - 1
    if layout.codebook:
        table = bytes(value + layout.offset for value in IQ4_NL_VALUES)
        quads, largest = [operations.lookup(emitter, table, quad) for quad in quads], max(table)

    # f16 first; in super-blocks, they are multiplied by bytes of each part or block
    group = builder.udiv(index, emitter.integer(layout.blocks))
    sub = builder.urem(index, emitter.integer(layout.blocks))
    base = emitter.address(scales, (group, layout.scale_bytes))
    factors = emitter.address(base, 64 if layout.minimum else 32)

    def multiplied(half: Value, place: Value) -> Value:
        if layout.blocks == 1:
            return half
        convert = builder.uitofp if layout.minimum else builder.sitofp
        return builder.fmul(half, convert(emitter.load(place, V16I8, 1), V16F32))

    step = emitter.half_vector(base)
    planes = _START_PLANES[layout.offset, layout.parts]
    width = QUADS // layout.parts
    parts = []
    for part, plane in enumerate(planes):
        place = emitter.address(factors, (sub, 16 * layout.parts), 16 * part)
        some = quads[width * part : width * (part + 1)]
        parts.append(Part(some, largest, plane, multiplied(step, place)))
    if not layout.minimum:
        return Block(parts)
    place = emitter.address(factors, 16 * layout.blocks, (sub, 16))
    minimum = multiplied(emitter.half_vector(emitter.address(base, 32)), place)
    return Block(parts, builder.fneg(minimum))


_START_PLANES: dict[tuple[int, int], tuple[int | None, ...]] = {
    (0, 1): (None,),
    (8, 1): (tile.START_8,),
    (16, 1): (tile.START_16,),
    (128, 1): (tile.START_128,),
    (32, 2): (tile.START_32_LOW, tile.START_32_HIGH),
}
"""Where the integer sums of a block's parts start, by the weights' offset and number of parts."""


def _nibbles(emitter: Emitter, base: Value) -> list[Value]:
    """8 quads from 4 loads: low nibbles are quads 0..3, high nibbles quads 4..7."""
    builder = emitter.builder
    raw = [emitter.load(emitter.address(base, 64 * i), V16I32, 1) for i in range(QUADS // 2)]
    mask, four = emitter.constant(0x0F0F0F0F), emitter.constant(4)
    low = [builder.and_(value, mask) for value in raw]
    return low + [builder.and_(builder.lshr(value, four), mask) for value in raw]


def _with_high_bits(
    emitter: Emitter, num_bits: int, quads: list[Value], base: Value
) -> list[Value]:
    """Quads with the bits above their nibbles, which lie `num_bits` for a quad in a byte."""
    if num_bits == 0:
        return quads
    builder = emitter.builder
    in_word = 8 // num_bits
    words = [
        emitter.load(emitter.address(base, 256 + 64 * i), V16I32, 1)
        for i in range(QUADS // in_word)
    ]
    mask = emitter.constant(((1 << num_bits) - 1) * 0x10101010)
    found = []
    for index, quad in enumerate(quads):
        bits, up = words[index // in_word], 4 - num_bits * (index % in_word)
        if up > 0:
            bits = builder.shl(bits, emitter.constant(up))
        elif up < 0:
            bits = builder.lshr(bits, emitter.constant(-up))
        found.append(builder.or_(quad, builder.and_(bits, mask)))
    return found
