"""Pack types whose weights are entries of a grid: each weight becomes its magnitude's place in a
short list, with a bit for its sign above it.

A block of 32 columns of 16 rows is done at a time. What differs between types is where places,
signs and scales lie.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import I32, I64, V16I8, V16I32, Value
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.matmul.pack_words import (
    BITS,
    SUPER,
    SourceRows,
    field,
    joined,
    store_block,
)
from edgespec.models.spec import TensorType
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class _Block:
    """One block of the file: where its super-block starts, and which of the 8 it is."""

    rows: SourceRows
    start: Value
    sub: Value

    def byte(self, offset: int) -> Value:
        """The block's byte among those from an offset on, as int32."""
        return self._wide(self.rows.bytes(self._place(offset, 1)))

    def short(self, offset: int, step: int = 2) -> Value:
        """The block's two bytes, with `step` bytes from one block's to the next's."""
        return self._wide(self.rows.shorts(self._place(offset, step)))

    def word(self, offset: int, step: int = 4) -> Value:
        """The block's four bytes."""
        return self.rows.word(self._place(offset, step))

    def field(self, word: Value, shift: int, mask: int) -> Value:
        return field(self.rows.emitter, word, shift, mask)

    def fields(self, word: Value, width: int, count: int) -> list[Value]:
        """Fields of so many bits, lowest first."""
        return [self.field(word, width * index, (1 << width) - 1) for index in range(count)]

    def own_field(self, word: Value, width: int, blocks: int = SUPER) -> Value:
        """The block's field in a word that several blocks share, and what lies above it."""
        builder = self.rows.emitter.builder
        inside = builder.urem(self.sub, self.rows.emitter.integer(blocks))
        amount = builder.mul(inside, self.rows.emitter.integer(width))
        return builder.lshr(word, self.rows.emitter.splat(builder.trunc(amount, I32)))

    def with_more(self, low: list[Value], high: Value, width: int) -> list[Value]:
        """Places of 8 bits with some more above them."""
        more = self.fields(high, width, len(low))
        pairs = zip(low, more, strict=True)
        return [joined(self.rows.emitter, list(pair), 8) for pair in pairs]

    def signs_of_sevens(self, word: Value) -> list[Value]:
        """Four times seven signs, each with an eighth that makes the number of ones even."""
        return [self.eight(seven) for seven in self.fields(word, 7, 4)]

    def eight(self, seven: Value) -> Value:
        ones = self.rows.emitter.call("llvm.ctpop.v16i32", V16I32, [seven])
        return joined(self.rows.emitter, [seven, self.field(ones, 0, 1)], 7)

    def all_eight(self, sign: Value) -> Value:
        """One sign for eight columns."""
        return self.rows.emitter.builder.mul(sign, self.rows.emitter.constant(255))

    def _place(self, offset: int, step: int) -> Value:
        return self.rows.emitter.address(self.start, offset, (self.sub, step))

    def _wide(self, value: Value) -> Value:
        return self.rows.emitter.builder.zext(value, V16I32)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a block holds, all int32 of 16 rows."""

    places: list[Value]
    """In the grid: 4 entries of 8 columns, or 8 of 4."""
    signs: list[Value]
    """Of 8 columns each, lowest bit first."""
    scales: list[Value]
    """Of the block's parts; scale s stands for 2 s + 1."""


def _iq2_xxs(block: _Block) -> _Found:
    signs = block.word(6, 8)
    scale = block.field(signs, 28, 15)
    places = block.fields(block.word(2, 8), 8, 4)
    return _Found(places, block.signs_of_sevens(signs), [scale])


def _iq2_xs(block: _Block) -> _Found:
    shorts = [block.short(2 + 2 * index, 8) for index in range(4)]
    places = [block.field(short, 0, 511) for short in shorts]
    signs = [block.eight(block.field(short, 9, 127)) for short in shorts]
    return _Found(places, signs, block.fields(block.byte(66), 4, 2))


def _iq2_s(block: _Block) -> _Found:
    places = block.with_more(block.fields(block.word(2), 8, 4), block.byte(66), 2)
    signs = block.fields(block.word(34), 8, 4)
    return _Found(places, signs, block.fields(block.byte(74), 4, 2))


def _iq3_xxs(block: _Block) -> _Found:
    signs = block.word(66)
    scale = block.field(signs, 28, 15)
    return _Found(_eight_bytes(block, 2), block.signs_of_sevens(signs), [scale])


def _iq3_s(block: _Block) -> _Found:
    places = block.with_more(_eight_bytes(block, 2), block.byte(66), 1)
    scale = block.field(block.own_field(block.word(106, 0), 4), 0, 15)
    return _Found(places, block.fields(block.word(74), 8, 4), [scale])


def _iq1_s(block: _Block) -> _Found:
    high = block.short(34)
    places = block.with_more(block.fields(block.word(2), 8, 4), high, 3)
    sign = block.all_eight(block.field(high, 15, 1))
    return _Found(places, [sign] * 4, [block.field(high, 12, 7)])


def _iq1_m(block: _Block) -> _Found:
    """Four bits for each entry: three of its place and the eighth's sign; scales lie below the
    pieces of the f16, those of two blocks in 16 bits.
    """
    emitter = block.rows.emitter
    low, high = block.fields(block.word(0), 8, 4), block.fields(block.short(32), 4, 4)
    pairs = zip(low, high, strict=True)
    places = [joined(emitter, [place, block.field(more, 0, 7)], 8) for place, more in pairs]
    signs = [block.all_eight(block.field(more, 3, 1)) for more in high]
    pair = emitter.builder.udiv(block.sub, emitter.integer(2))
    scales = _Block(block.rows, block.start, pair).short(48)
    return _Found(places, signs, block.fields(block.own_field(scales, 6, 2), 3, 2))


def _eight_bytes(block: _Block, offset: int) -> list[Value]:
    words = block.word(offset, 8), block.word(offset + 4, 8)
    return [byte for word in words for byte in block.fields(word, 8, 4)]


_TYPES: dict[TensorType, Callable[[_Block], _Found]] = {
    TensorType.IQ3_S: _iq3_s,
    TensorType.IQ3_XXS: _iq3_xxs,
    TensorType.IQ2_S: _iq2_s,
    TensorType.IQ2_XS: _iq2_xs,
    TensorType.IQ2_XXS: _iq2_xxs,
    TensorType.IQ1_M: _iq1_m,
    TensorType.IQ1_S: _iq1_s,
}


def super_block(
    rows: SourceRows, kind: TensorType, start: Value, quads: Value, steps: Value, grid: Value
) -> None:
    """A super-block of a grid type; `grid` is the address of its grid, a byte for each place."""
    emitter, builder = rows.emitter, rows.emitter.builder
    layout = tile.FORMATS[kind].layout
    half = _half_in_pieces(rows, start) if kind is TensorType.IQ1_M else rows.shorts(start)
    emitter.store(half, steps, 1)
    with emitter.loop(emitter.integer(SUPER)) as sub:
        found = _TYPES[kind](_Block(rows, start, sub))
        for part, scale in enumerate(found.scales):
            odd = builder.or_(builder.shl(scale, emitter.constant(1)), emitter.constant(1))
            place = emitter.address(steps, 32 + 16 * part, (sub, 16 * layout.parts))
            emitter.store(builder.trunc(odd, V16I8), place, 1)
        codes = _entries(rows, grid, found.places)
        for index, quad in enumerate(codes):
            nibble = field(emitter, found.signs[index // 2], 4 * (index % 2), 15)
            spread = builder.mul(nibble, emitter.constant(0x00204081))  # bit i to bit 8 i
            sign = builder.and_(spread, emitter.constant(BITS))
            codes[index] = joined(emitter, [quad, sign], layout.bits - 1)
        place = emitter.address(quads, (sub, 64 * layout.bits))
        store_block(emitter, layout.bits, codes, place)


def _half_in_pieces(rows: SourceRows, start: Value) -> Value:
    """The f16 of IQ1_M: four bits at the top of each of four 16."""
    emitter, builder = rows.emitter, rows.emitter.builder
    shorts = [rows.shorts(emitter.address(start, 48 + 2 * index)) for index in range(4)]
    words = [builder.zext(short, V16I32) for short in shorts]
    pieces = [field(emitter, word, 12, 15) for word in words]
    return builder.trunc(joined(emitter, pieces, 4), emitter.i16)


def _entries(rows: SourceRows, grid: Value, places: list[Value]) -> list[Value]:
    """The 8 quads that the entries at these places hold."""
    emitter, builder = rows.emitter, rows.emitter.builder
    entry = I64 if len(places) == 4 else I32
    found = []
    for place in places:
        quads = ir.Constant(ir.VectorType(entry, tile.TILE_ROWS), ir.Undefined)
        for row in range(tile.TILE_ROWS):
            lane = ir.Constant(I32, row)
            index = builder.zext(builder.extract_element(place, lane), I64)
            value = emitter.load(emitter.address(grid, (index, entry.width // 8)), entry)
            quads = builder.insert_element(quads, value, lane)
        if entry is I32:
            found.append(quads)
            continue
        shift = ir.Constant(quads.type, [ir.Constant(I64, 32)] * tile.TILE_ROWS)
        found += [builder.trunc(half, V16I32) for half in (quads, builder.lshr(quads, shift))]
    return found
