"""One block of 32 columns of a tile, unpacked in registers: quads of unsigned bytes, the scales of
its parts and, for types that have them, minima (see `tile.py` for how they lie in memory).
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import F32, Emitter, Value
from edgespec.backends.native.kernels.matmul import tile
from edgespec.models.gguf.codebooks import CODEBOOKS
from edgespec.system.records import dataclass

QUADS = tile.BLOCK // 4
Lookup = Callable[[Emitter, bytes, Value], Value]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some of a tile's rows, `lanes` from row `first` on, and how their weights are loaded."""

    emitter: Emitter
    lookup: Lookup
    first: int

    def quad(self, base: Value, index: int) -> Value:
        """Quad `index` of those that start at `base`."""
        return self.emitter.load(
            self.emitter.address(base, 4 * (tile.TILE_ROWS * index + self.first)), self.emitter.i32
        )

    def halves(self, base: Value) -> Value:
        """f32 from the tile's 16 f16 at `base`."""
        return self.emitter.half_vector(self.emitter.address(base, 2 * self.first))

    def floats(self, value: float) -> Value:
        """The number in all lanes."""
        return ir.Constant(self.emitter.f32, [ir.Constant(F32, value)] * self.emitter.lanes)

    def octets(self, base: Value) -> Value:
        """int8 from the tile's 16 bytes at `base`."""
        return self.emitter.load(self.emitter.address(base, self.first), self.emitter.i8)


@dataclass(frozen=True, slots=True)
class Start:
    """Where integer sums start: a plane, shifted left."""

    plane: int
    shift: int = 0

    def shifted(self, emitter: Emitter, value: Value) -> Value:
        """What a plane's value comes to."""
        return _moved(emitter, value, self.shift)


@dataclass(frozen=True, slots=True)
class Part:
    """A run of quads that share one scale: where its integer sum starts and what it is multiplied
    by.
    """

    quads: list[Value]
    largest: int
    """The largest weight a quad can hold."""
    start: Start | None
    scale: Value
    minimum: Value | None = None
    """Where parts have one of their own: its 32nd, as it multiplies -32 times the part's sum. Such
    parts are added up before the token's scale multiplies them.
    """


@dataclass(frozen=True, slots=True)
class Block:
    """One block of 32 columns of 16 rows, unpacked: its parts and, for types that have one, the
    minimum.
    """

    parts: list[Part]
    minimum: Value | None = None


def unpack_block(
    rows: Rows, layout: tile.Layout, weights: Value, scales: Value, index: Value
) -> Block:
    """The block at an index: its quads as unsigned bytes, its scales and minima as floats."""
    emitter, builder = rows.emitter, rows.emitter.builder
    base = emitter.address(weights, (index, 64 * layout.bits))
    if layout.bits == 8:
        quads = [rows.quad(base, i) for i in range(QUADS)]
    elif layout.bits >= 4:
        quads = _with_high_bits(rows, layout.bits, 4, _nibbles(rows, base), base)
    else:
        pairs = _pairs(rows, base, layout.raised)
        quads = _with_high_bits(rows, layout.bits, 2, pairs, base, layout.raised)
    largest = ((1 << layout.bits) - 1) << layout.raised
    if layout.codebook:
        table = bytes(value + layout.offset for value in CODEBOOKS[layout.codebook])
        quads = [rows.lookup(emitter, table, quad) for quad in quads]
        largest = max(table)

    group = builder.udiv(index, emitter.integer(layout.blocks))
    sub = builder.urem(index, emitter.integer(layout.blocks))
    base = emitter.address(scales, (group, layout.scale_bytes))
    factors = emitter.address(base, 64 if layout.minimum else 32)
    if layout.step == tile.HALF:
        steps = _halves(rows, layout, base, factors, sub)
    else:
        steps = _small_floats(rows, layout, base, sub)
    starts = _STARTS[layout.offset, layout.parts]
    width = QUADS // layout.parts
    parts = [
        Part(quads[width * part : width * (part + 1)], largest, start, *step)
        for part, (start, step) in enumerate(zip(starts, steps, strict=True))
    ]
    return Block(parts, _minimum(rows, layout, base, factors, sub))


def _halves(
    rows: Rows, layout: tile.Layout, base: Value, factors: Value, sub: Value
) -> list[tuple[Value, ...]]:
    """Each part's f16 scale, in super-blocks times a byte, and its minimum if it has its own."""
    emitter, builder = rows.emitter, rows.emitter.builder
    step = rows.halves(base)
    if layout.unit != 1.0:
        step = builder.fmul(step, rows.floats(layout.unit))
    if layout.factors == 4:
        least = builder.fmul(rows.halves(emitter.address(base, 32)), rows.floats(1 / 32))
    convert = builder.uitofp if layout.minimum else builder.sitofp
    found: list[tuple[Value, ...]] = []
    for part in range(layout.parts):
        place = emitter.address(factors, (sub, 16 * layout.parts), 16 * part)
        if layout.factors == 0:
            found.append((step,))
        elif layout.factors == 8:
            found.append((builder.fmul(step, convert(rows.octets(place), emitter.f32)),))
        else:
            both = builder.zext(rows.octets(place), emitter.i32)
            low = builder.and_(both, emitter.constant(15))
            high = builder.lshr(both, emitter.constant(4))
            pair = ((step, low), (least, high))
            found.append(tuple(builder.fmul(f, convert(i, emitter.f32)) for f, i in pair))
    return found


def _small_floats(
    rows: Rows, layout: tile.Layout, base: Value, sub: Value
) -> list[tuple[Value, ...]]:
    """Each part's scale of 8 bits."""
    emitter, found = rows.emitter, list[tuple[Value, ...]]()
    decode = _power_of_two if layout.step == tile.E8M0 else _small_float
    for part in range(layout.parts):
        place = emitter.address(base, (sub, 16 * layout.parts), 16 * part)
        found.append((decode(rows, rows.octets(place)),))
    return found


def _power_of_two(rows: Rows, exponents: Value) -> Value:
    """Half of 2 ** (exponent - 127); f32 has two of these as subnormals only."""
    emitter, builder = rows.emitter, rows.emitter.builder
    wide, one = builder.zext(exponents, emitter.i32), emitter.constant(1)
    tiny = builder.shl(emitter.constant(0x00200000), builder.and_(wide, one))
    normal = builder.shl(builder.sub(wide, one), emitter.constant(23))
    above = builder.icmp_unsigned(">", wide, one)
    return builder.bitcast(builder.select(above, normal, tiny), emitter.f32)


def _small_float(rows: Rows, octets: Value) -> Value:
    """Half of an unsigned float of 4 and 3 bits, by way of f16, whose bias is 8 more; what is not a
    number is zero.
    """
    emitter, builder = rows.emitter, rows.emitter.builder
    wide = builder.zext(octets, emitter.i32)
    bits = builder.shl(builder.and_(wide, emitter.constant(127)), emitter.constant(7))
    half = builder.bitcast(builder.trunc(bits, emitter.i16), emitter.f16)
    value = builder.fmul(builder.fpext(half, emitter.f32), rows.floats(128.0))
    none = builder.icmp_unsigned("==", wide, emitter.constant(127))
    return builder.select(none, emitter.zero(), value)


def _minimum(
    rows: Rows, layout: tile.Layout, base: Value, factors: Value, sub: Value
) -> Value | None:
    """What is taken off all of a block's weights, negated."""
    if not layout.minimum or layout.factors == 4:
        return None
    emitter, builder = rows.emitter, rows.emitter.builder
    place = emitter.address(factors, 16 * layout.blocks, (sub, 16))
    minimum = rows.halves(emitter.address(base, 32))
    if layout.factors:
        minimum = builder.fmul(minimum, builder.uitofp(rows.octets(place), emitter.f32))
    return builder.fneg(minimum)


_STARTS: dict[tuple[int, int], tuple[Start | None, ...]] = {
    (0, 1): (None,),
    (0, 2): (None, None),
    (8, 1): (Start(tile.START_8),),
    (16, 1): (Start(tile.START_16),),
    (32, 2): (Start(tile.START_32_LOW), Start(tile.START_32_HIGH)),
    (64, 1): (Start(tile.START_16, 2),),
    (64, 2): (Start(tile.START_32_LOW, 1), Start(tile.START_32_HIGH, 1)),
    (128, 1): (Start(tile.START_128),),
}
"""Where the integer sums of a block's parts start, by the weights' offset and number of parts."""


def _nibbles(rows: Rows, base: Value) -> list[Value]:
    """8 quads from 4 loads: low nibbles are quads 0..3, high nibbles quads 4..7."""
    emitter, builder = rows.emitter, rows.emitter.builder
    raw = [rows.quad(base, i) for i in range(QUADS // 2)]
    mask, four = emitter.constant(0x0F0F0F0F), emitter.constant(4)
    low = [builder.and_(value, mask) for value in raw]
    return low + [builder.and_(builder.lshr(value, four), mask) for value in raw]


def _pairs(rows: Rows, base: Value, raised: int) -> list[Value]:
    """8 quads from 2 loads: the lowest pairs of bits are quads 0 and 4, the highest 3 and 7."""
    emitter, builder = rows.emitter, rows.emitter.builder
    raw = [rows.quad(base, i) for i in range(QUADS // 4)]
    mask = emitter.constant(0x03030303 << raised)
    return [
        builder.and_(_moved(emitter, value, raised - place), mask)
        for value in raw
        for place in range(0, 8, 2)
    ]


def _moved(emitter: Emitter, bits: Value, up: int) -> Value:
    """Bits so many places higher, or lower."""
    if up > 0:
        return emitter.builder.shl(bits, emitter.constant(up))
    return emitter.builder.lshr(bits, emitter.constant(-up)) if up < 0 else bits


def _with_high_bits(
    rows: Rows, num_bits: int, num_low: int, quads: list[Value], base: Value, raised: int = 0
) -> list[Value]:
    """Quads with the bits above their lowest, which lie packed after these, as many for each."""
    num_high = num_bits - num_low
    if num_high == 0:
        return quads
    emitter, builder = rows.emitter, rows.emitter.builder
    in_word = 8 // num_high
    above = emitter.address(base, 64 * num_low)
    words = [rows.quad(above, i) for i in range(QUADS // in_word)]
    lowest = num_low + raised
    mask = emitter.constant((((1 << num_high) - 1) << lowest) * 0x01010101)
    found = []
    for index, quad in enumerate(quads):
        up = lowest - num_high * (index % in_word)
        bits = _moved(emitter, words[index // in_word], up)
        found.append(builder.or_(quad, builder.and_(bits, mask)))
    return found
