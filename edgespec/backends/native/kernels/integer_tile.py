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
from edgespec.models.spec import TensorType

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
    block_bytes = tile.FORMATS[kind].tile_bytes(256)[0] // 8
    with emitter.loop(num_blocks) as index:
        block = _UNPACK[kind](emitter, operations, weights, scales, index)
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


def _nibbles(emitter: Emitter, base: Value) -> list[Value]:
    """8 quads from 4 loads: low nibbles are quads 0..3, high nibbles quads 4..7."""
    builder = emitter.builder
    raw = [emitter.load(emitter.address(base, 64 * i), V16I32, 1) for i in range(QUADS // 2)]
    mask, four = emitter.constant(0x0F0F0F0F), emitter.constant(4)
    low = [builder.and_(value, mask) for value in raw]
    return low + [builder.and_(builder.lshr(value, four), mask) for value in raw]


def _unpack_q8_0(
    emitter: Emitter, operations: Operations, weights: Value, scales: Value, index: Value
) -> Block:
    base = emitter.address(weights, (index, 512))
    quads = [emitter.load(emitter.address(base, 64 * i), V16I32, 1) for i in range(QUADS)]
    scale = emitter.half_vector(emitter.address(scales, (index, 32)))
    return Block([Part(quads, 255, tile.START_128, scale)])


def _unpack_q4_0(
    emitter: Emitter, operations: Operations, weights: Value, scales: Value, index: Value
) -> Block:
    quads = _nibbles(emitter, emitter.address(weights, (index, 256)))
    scale = emitter.half_vector(emitter.address(scales, (index, 32)))
    return Block([Part(quads, 15, tile.START_8, scale)])


def _unpack_q4_k(
    emitter: Emitter, operations: Operations, weights: Value, scales: Value, index: Value
) -> Block:
    """Scales of a super-block: d, dmin (f16 x 16), then 8 x 16 scale bytes, then 8 x 16 minimum
    bytes.
    """
    builder = emitter.builder
    quads = _nibbles(emitter, emitter.address(weights, (index, 256)))
    three = emitter.integer(3)
    base = emitter.address(scales, (builder.lshr(index, three), 320))
    sub = builder.and_(index, emitter.integer(7))
    steps = emitter.load(emitter.address(base, 64, (sub, 16)), V16I8, 1)
    minima = emitter.load(emitter.address(base, 64 + 128, (sub, 16)), V16I8, 1)
    scale = builder.fmul(emitter.half_vector(base), builder.uitofp(steps, V16F32))
    minimum = builder.fmul(
        emitter.half_vector(emitter.address(base, 32)), builder.uitofp(minima, V16F32)
    )
    return Block([Part(quads, 15, None, scale)], builder.fneg(minimum))


def _unpack_q6_k(
    emitter: Emitter, operations: Operations, weights: Value, scales: Value, index: Value
) -> Block:
    """Weights of a block: 256 bytes of nibbles, 128 of high bits; scales: d (f16 x 16), then 16 x
    16 bytes.
    """
    builder = emitter.builder
    base = emitter.address(weights, (index, 384))
    low = _nibbles(emitter, base)
    high = [emitter.load(emitter.address(base, 256 + 64 * i), V16I32, 1) for i in range(2)]
    mask = emitter.constant(0x30303030)
    quads = []
    for quad in range(QUADS):
        bits, pair = high[quad // 4], quad % 4
        if pair < 2:  # the pair of bits moves to places 4 and 5
            bits = builder.shl(bits, emitter.constant(4 - 2 * pair))
        elif pair == 3:
            bits = builder.lshr(bits, emitter.constant(2))
        quads.append(builder.or_(low[quad], builder.and_(bits, mask)))
    base = emitter.address(scales, (builder.lshr(index, emitter.integer(3)), 288))
    step = emitter.half_vector(base)
    parts = []
    for half, plane in ((0, tile.START_32_LOW), (1, tile.START_32_HIGH)):
        sub = builder.and_(index, emitter.integer(7))
        place = emitter.address(base, 32 + 16 * half, (sub, 32))
        factor = builder.sitofp(emitter.load(place, V16I8, 1), V16F32)
        parts.append(Part(quads[4 * half : 4 * half + 4], 63, plane, builder.fmul(step, factor)))
    return Block(parts)


_UNPACK = {
    TensorType.Q8_0: _unpack_q8_0,
    TensorType.Q4_0: _unpack_q4_0,
    TensorType.Q4_K: _unpack_q4_k,
    TensorType.Q6_K: _unpack_q6_k,
}
