"""Tiles of quantised weights: int8 activations, unsigned packed weights, exact integer sums per
block.

One instruction set differs from another only in its `Operations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from edgespec.backends.native.kernels.codegen.emit import (
    F32,
    I1,
    I32,
    I64,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.matmul.block import Block, Rows, unpack_block
from edgespec.models.spec import TensorType
from edgespec.system.records import dataclass


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
    """Most tokens `dot` takes at once in a loop; straight code hands it `TOGETHER`."""
    signed: bool = False
    """Weights that may exceed 127 count as 128 less in `dot`, so START_128 is left out."""


TOGETHER = 4
"""Tokens whose sums straight code makes side by side: one alone waits for itself at each quad."""
PREFETCH = ((2, 4096), (1, 1024))
"""Into which cache weights are asked for, and how many bytes ahead.

The processor's own prefetcher does not run far enough ahead of a loop that computes. Asked for in
two steps, more lines are under way than the first cache can wait for at a time.
"""


def emit_tile(kind: TensorType, num_tokens: int, operations: Operations) -> Function:
    """LLVM text and function name of the tile function for one type and number of tokens.

    Up to `operations.unrolled` tokens it is straight code for just so many. Beyond, one function
    loops over as many as it is told.
    """
    unrolled = num_tokens <= operations.unrolled
    name = tile.function_name(kind, num_tokens, operations.unrolled)
    emitter = Emitter(name, tile.NUM_ARGUMENTS, operations.lanes)
    weights, scales, _, _, output, num_blocks = emitter.arguments[:6]
    output_stride, told, accumulate = emitter.arguments[9:]
    most = num_tokens if unrolled else tile.INTEGER_SIZES[-1]
    parts = range(0, tile.TILE_ROWS, operations.lanes)
    num_sums = most * len(parts)
    if unrolled:
        sums = emitter.array(num_sums, emitter.zero())
    else:  # LLVM fills an array with a zero it sees by calling memset; these functions call nothing
        used = emitter.address(0, (told, len(parts)))
        sums = emitter.array(num_sums, emitter.zero(hidden=output_stride), used)
    layout = tile.FORMATS[kind].layout
    block_bytes = 64 * layout.bits

    def tokens(straight: int, looped: int) -> Iterator[list[Value]]:
        """Groups of tokens; what is emitted between two is done for each group."""
        return _straight(emitter, most, straight) if unrolled else _looped(emitter, told, looped)

    with emitter.loop(num_blocks) as index:
        for level, distance in PREFETCH:
            ahead = emitter.address(weights, (index, block_bytes), distance)
            emitter.prefetch(ahead, block_bytes, level)
        for part, first in enumerate(parts):
            rows = Rows(emitter, operations.lookup, first)
            block = unpack_block(rows, layout, weights, scales, index)
            for group in tokens(max(TOGETHER, operations.tokens), operations.tokens):
                places = [emitter.address(part, (token, len(parts))) for token in group]
                slots = [emitter.slot(sums, place) for place in places]
                _add_block(emitter, block, operations, group, index, slots)
    for (token,) in tokens(1, 1):
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

    totals = before = [builder.load(slot) for slot in slots]
    factors = of_plane(tile.SCALE, F32)
    own_minima = block.parts[0].minimum is not None
    if own_minima:  # the block is added up first, then multiplied by the factor
        totals = [emitter.zero() for _ in tokens]
    done = 0
    for part in block.parts:
        start = part.start
        if start is None or (operations.signed and start.plane == tile.START_128):
            starts = [emitter.constant(0) for _ in tokens]
        else:
            starts = [start.shifted(emitter, value) for value in of_plane(start.plane, I32)]
        own = [emitter.address(row, 4 * done) for row in rows]
        sums = operations.dot(emitter, starts, part.quads, own, part.largest)
        done += len(part.quads)
        totals = [
            emitter.fma(
                builder.sitofp(acc, emitter.f32),
                part.scale if own_minima else builder.fmul(part.scale, factor),
                total,
            )
            for acc, factor, total in zip(sums, factors, totals, strict=True)
        ]
    if block.minimum is not None:
        totals = [
            emitter.fma(block.minimum, block_sum, total)
            for block_sum, total in zip(of_plane(tile.SUM, F32), totals, strict=True)
        ]
    if own_minima:
        for plane, part in zip(tile.HALF_STARTS, block.parts, strict=True):
            half_sums = [builder.sitofp(value, emitter.f32) for value in of_plane(plane, I32)]
            totals = [
                emitter.fma(part.minimum, half_sum, total)
                for half_sum, total in zip(half_sums, totals, strict=True)
            ]
        totals = [
            emitter.fma(total, factor, running)
            for total, factor, running in zip(totals, factors, before, strict=True)
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
