"""Tiles of quantised weights: int8 activations, unsigned packed weights, exact integer sums per
block.

One instruction set differs from another only in its `Operations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from edgespec.backends.native.kernels import tile
from edgespec.backends.native.kernels.emit import F32, I1, I32, I64, Emitter, Function, Value
from edgespec.models.spec import TensorType

QUADS = tile.BLOCK // 4


@dataclass(frozen=True, slots=True)
class Operations:
    """What an instruction set brings of its own; all else is shared LLVM text.

    A quad is four consecutive columns of `lanes` rows, 4 bytes in each lane of a vector of int32.
    """

    lanes: int
    """Rows of a tile that are computed at once, as many as suit the registers: 8 or 16."""
    dot: Callable[[Emitter, list[Value], list[Value], list[Value], int], list[Value]]
    """(emitter, starts, quads of u8 weights, addresses of i8 activations, largest weight) -> sums,
    each its start plus the products of all quads, exactly. A start and an address for each token.
    """
    lookup: Callable[[Emitter, bytes, Value], Value]
    """(emitter, 16 bytes, a quad of indices 0..15) -> the quad of bytes they name."""
    unrolled: int = 1
    """Most tokens whose sums stay in registers, in a function for just so many; with more, sums
    are in memory and the weights of a block in registers while a loop goes over the tokens.
    """
    tokens: int = 1
    """Most tokens `dot` takes at once."""
    signed: bool = False
    """Weights that may exceed 127 count as 128 less in `dot`, so START_128 is left out."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some of a tile's rows, `lanes` from row `first` on, and how their weights are loaded."""

    emitter: Emitter
    operations: Operations
    first: int

    def quad(self, base: Value, index: int) -> Value:
        """Quad `index` of those that start at `base`."""
        return self.emitter.load(
            self.emitter.address(base, 4 * (tile.TILE_ROWS * index + self.first)), self.emitter.i32
        )

    def halves(self, base: Value) -> Value:
        """f32 from the tile's 16 f16 at `base`."""
        return self.emitter.half_vector(self.emitter.address(base, 2 * self.first))

    def octets(self, base: Value) -> Value:
        """int8 from the tile's 16 bytes at `base`."""
        return self.emitter.load(self.emitter.address(base, self.first), self.emitter.i8)


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


def emit_tile(kind: TensorType, num_tokens: int, operations: Operations) -> Function:
    """LLVM text and function name of the tile function for one type and number of tokens.

    Up to `operations.unrolled` tokens it is straight code for just so many. Beyond, one function
    loops over as many as it is told.
    """
    unrolled = num_tokens <= operations.unrolled
    name = f"tile_{kind.name}_{num_tokens if unrolled else 'many'}"
    emitter = Emitter(name, tile.NUM_ARGUMENTS, operations.lanes)
    weights, scales, _, _, output, num_blocks = emitter.arguments[:6]
    output_stride, told, accumulate = emitter.arguments[9:]
    most = num_tokens if unrolled else tile.INTEGER_SIZES[-1]
    parts = range(0, tile.TILE_ROWS, operations.lanes)
    # LLVM fills an array with a zero it sees by calling memset; these functions call nothing.
    sums = emitter.array(most * len(parts), emitter.zero(None if unrolled else told))
    block_bytes = tile.FORMATS[kind].tile_bytes(256)[0] // 8

    def tokens(at_once: int) -> Iterator[list[Value]]:
        """Groups of tokens; what is emitted between two is done for each group."""
        return _straight(emitter, most, at_once) if unrolled else _looped(emitter, told, at_once)

    with emitter.loop(num_blocks) as index:
        ahead = emitter.address(weights, (index, block_bytes), PREFETCH_BYTES)
        emitter.prefetch(ahead, block_bytes)
        for part, first in enumerate(parts):
            block = _UNPACK[kind](Rows(emitter, operations, first), weights, scales, index)
            for group in tokens(operations.tokens):
                places = [emitter.address(part, (token, len(parts))) for token in group]
                slots = [emitter.slot(sums, place) for place in places]
                _add_block(emitter, block, operations, group, index, slots)
    for (token,) in tokens(1):
        for part, first in enumerate(parts):
            slot = emitter.slot(sums, emitter.address(part, (token, len(parts))))
            place = emitter.address(output, (token, output_stride), 4 * first)
            finish(emitter, slot, place, accumulate)
    return emitter.done()


def _straight(emitter: Emitter, count: int, at_once: int) -> Iterator[list[Value]]:
    for first in range(0, count, at_once):
        yield [emitter.integer(token) for token in range(first, min(first + at_once, count))]


def _looped(emitter: Emitter, count: Value, at_once: int) -> Iterator[list[Value]]:
    """The last token fills up the last group: it is computed twice, and stored twice alike."""
    builder = emitter.builder
    groups = builder.udiv(emitter.address(count, at_once - 1), emitter.integer(at_once))
    last = emitter.address(count, -1)
    with emitter.loop(groups) as index:
        first = emitter.address(0, (index, at_once))
        others = [emitter.address(first, more) for more in range(1, at_once)]
        yield [first, *(emitter.call("llvm.umin.i64", I64, [other, last]) for other in others)]


def _add_block(
    emitter: Emitter,
    block: Block,
    operations: Operations,
    tokens: list[Value],
    index: Value,
    slots: list[Value],
) -> None:
    """Add the products of the block at an index with some tokens to their running float sums."""
    builder = emitter.builder
    activations, planes = emitter.arguments[2:4]
    activation_stride, row_stride, plane_stride = emitter.arguments[6:9]
    rows, metas = (
        [emitter.address(base, (token, stride), (index, size)) for token in tokens]
        for base, stride, size in (
            (activations, activation_stride, tile.BLOCK),
            (planes, row_stride, 4),
        )
    )

    def of_plane(plane: int, element: Any) -> list[Value]:
        """Each token's entry in a plane, in all lanes."""
        return [
            emitter.splat_load(emitter.address(meta, (plane, plane_stride)), element)
            for meta in metas
        ]

    totals = [builder.load(slot) for slot in slots]
    factors = of_plane(tile.SCALE, F32)
    done = 0
    for part in block.parts:
        plane = part.start_plane
        if plane is None or (operations.signed and plane == tile.START_128):
            starts = [emitter.constant(0) for _ in tokens]
        else:
            starts = of_plane(plane, I32)
        own = [emitter.address(row, 4 * done) for row in rows]
        sums = operations.dot(emitter, starts, part.quads, own, part.largest)
        done += len(part.quads)
        totals = [
            emitter.fma(builder.sitofp(acc, emitter.f32), builder.fmul(part.scale, factor), total)
            for acc, factor, total in zip(sums, factors, totals, strict=True)
        ]
    if block.minimum is not None:
        totals = [
            emitter.fma(block.minimum, block_sum, total)
            for block_sum, total in zip(of_plane(tile.SUM, F32), totals, strict=True)
        ]
    for total, slot in zip(totals, slots, strict=True):
        builder.store(total, slot)


def finish(emitter: Emitter, slot: Value, place: Value, accumulate: Value) -> None:
    """Store the results of a slot, on top of what stands there when `accumulate` is set."""
    builder = emitter.builder
    result = builder.load(slot)
    with builder.if_else(builder.trunc(accumulate, I1)) as (then, otherwise):
        with then:
            emitter.store(builder.fadd(emitter.load(place, emitter.f32, 4), result), place)
        with otherwise:
            emitter.store(result, place)


def _nibbles(rows: Rows, base: Value) -> list[Value]:
    """8 quads from 4 loads: low nibbles are quads 0..3, high nibbles quads 4..7."""
    emitter, builder = rows.emitter, rows.emitter.builder
    raw = [rows.quad(base, i) for i in range(QUADS // 2)]
    mask, four = emitter.constant(0x0F0F0F0F), emitter.constant(4)
    low = [builder.and_(value, mask) for value in raw]
    return low + [builder.and_(builder.lshr(value, four), mask) for value in raw]


def _unpack_q8_0(rows: Rows, weights: Value, scales: Value, index: Value) -> Block:
    emitter = rows.emitter
    base = emitter.address(weights, (index, 512))
    quads = [rows.quad(base, i) for i in range(QUADS)]
    scale = rows.halves(emitter.address(scales, (index, 32)))
    return Block([Part(quads, 255, tile.START_128, scale)])


def _unpack_q4_0(rows: Rows, weights: Value, scales: Value, index: Value) -> Block:
    emitter = rows.emitter
    quads = _nibbles(rows, emitter.address(weights, (index, 256)))
    scale = rows.halves(emitter.address(scales, (index, 32)))
    return Block([Part(quads, 15, tile.START_8, scale)])


def _unpack_q4_k(rows: Rows, weights: Value, scales: Value, index: Value) -> Block:
    """Scales of a super-block: d, dmin (f16 x 16), then 8 x 16 scale bytes, then 8 x 16 minimum
    bytes.
    """
    emitter, builder = rows.emitter, rows.emitter.builder
    quads = _nibbles(rows, emitter.address(weights, (index, 256)))
    base = emitter.address(scales, (builder.lshr(index, emitter.integer(3)), 320))
    sub = builder.and_(index, emitter.integer(7))
    steps = rows.octets(emitter.address(base, 64, (sub, 16)))
    minima = rows.octets(emitter.address(base, 64 + 128, (sub, 16)))
    scale = builder.fmul(rows.halves(base), builder.uitofp(steps, emitter.f32))
    minimum = builder.fmul(
        rows.halves(emitter.address(base, 32)), builder.uitofp(minima, emitter.f32)
    )
    return Block([Part(quads, 15, None, scale)], builder.fneg(minimum))


def _unpack_q6_k(rows: Rows, weights: Value, scales: Value, index: Value) -> Block:
    """Weights of a block: 256 bytes of nibbles, 128 of high bits; scales: d (f16 x 16), then 16 x
    16 bytes.
    """
    emitter, builder = rows.emitter, rows.emitter.builder
    base = emitter.address(weights, (index, 384))
    low = _nibbles(rows, base)
    high = [rows.quad(emitter.address(base, 256), i) for i in range(2)]
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
    step = rows.halves(base)
    parts = []
    for half, plane in ((0, tile.START_32_LOW), (1, tile.START_32_HIGH)):
        sub = builder.and_(index, emitter.integer(7))
        place = emitter.address(base, 32 + 16 * half, (sub, 32))
        factor = builder.sitofp(rows.octets(place), emitter.f32)
        parts.append(Part(quads[4 * half : 4 * half + 4], 63, plane, builder.fmul(step, factor)))
    return Block(parts)


_UNPACK = {
    TensorType.Q8_0: _unpack_q8_0,
    TensorType.Q4_0: _unpack_q4_0,
    TensorType.Q4_K: _unpack_q4_k,
    TensorType.Q6_K: _unpack_q6_k,
}
