"""Bring blocks of the file into the order of tiles: all types whose weights are integers, places in
a table of 16, or floats.

The file's blocks are those of ggml: scales first (in Q6_K, Q3_K, Q2_K and TQ last), high bits
before low ones (in Q6_K after them), and two nibbles of a byte 16 columns apart (in super-blocks
32, in Q6_K 64, in NVFP4 8).
"""

from __future__ import annotations

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import I16, V16I8, Emitter, Value
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.matmul.pack_words import (
    BITS,
    NIBBLES,
    PAIRS,
    SUPER,
    SourceRows,
    field,
    high_bits,
    joined,
    store_block,
    store_bytes,
    store_nibbles,
)


def floats(rows: SourceRows, start: Value, bits: int, target: Value) -> None:
    """Two columns."""
    emitter, builder = rows.emitter, rows.emitter.builder
    words = rows.words(start, bits // 16)
    if bits == 16:
        words.append(builder.lshr(words[0], emitter.constant(16)))
        words = [builder.trunc(word, emitter.i16) for word in words]
    for index, word in enumerate(words):
        emitter.store(word, emitter.address(target, 2 * bits * index), 1)


def block(rows: SourceRows, start: Value, layout: tile.Layout, quads: Value, steps: Value) -> None:
    """Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL."""
    emitter, builder = rows.emitter, rows.emitter.builder
    emitter.store(rows.shorts(start), steps, 1)
    start = emitter.address(start, 2)
    if layout.minimum:  # the file's is added, ours is taken off
        sign = ir.Constant(emitter.i16, [ir.Constant(I16, 0x8000)] * tile.TILE_ROWS)
        emitter.store(builder.xor(rows.shorts(start), sign), emitter.address(steps, 32), 1)
        start = emitter.address(start, 2)
    words = rows.words(start, layout.bits)
    if layout.bits == 5:
        emitter.store(high_bits(emitter, words.pop(0)), emitter.address(quads, 256), 1)
    for index, word in enumerate(words):
        if layout.bits == 8:  # from int8 to unsigned with an offset of 128
            word = builder.xor(word, emitter.constant(0x80808080))
        emitter.store(word, emitter.address(quads, 64 * index), 1)


def super_block(
    rows: SourceRows, start: Value, layout: tile.Layout, quads: Value, steps: Value
) -> None:
    """Q4_K and Q5_K."""
    emitter = rows.emitter
    for index in range(2):
        half = rows.shorts(emitter.address(start, 2 * index))
        emitter.store(half, emitter.address(steps, 32 * index), 1)
    words = rows.words(emitter.address(start, 4), 3 + 8 * layout.bits)
    low, middle, high = words[:3]
    factors = [
        field(emitter, low, 0, 0x3F3F3F3F),
        joined(emitter, [field(emitter, high, 0, NIBBLES), field(emitter, low, 6, PAIRS)], 4),
        field(emitter, middle, 0, 0x3F3F3F3F),
        joined(emitter, [field(emitter, high, 4, NIBBLES), field(emitter, middle, 6, PAIRS)], 4),
    ]
    store_bytes(emitter, factors, emitter.address(steps, 64))
    for sub in range(8):
        place = emitter.address(quads, 64 * layout.bits * sub)
        first = len(words) - 32 + 8 * (sub // 2)
        store_nibbles(emitter, words[first : first + 8], 4 * (sub % 2), place)
        if layout.bits == 5:
            bits = [field(emitter, word, sub, BITS) for word in words[3:11]]
            emitter.store(joined(emitter, bits, 1), emitter.address(place, 256), 1)


def q6_k(rows: SourceRows, start: Value, quads: Value, steps: Value) -> None:
    emitter = rows.emitter
    emitter.store(rows.shorts(emitter.address(start, 208)), steps, 1)
    words = rows.words(start, 52)
    store_bytes(emitter, words[48:], emitter.address(steps, 32))
    for sub in range(8):
        part, inner = divmod(sub, 4)
        place = emitter.address(quads, 384 * sub)
        first = 16 * part + 8 * (inner % 2)
        store_nibbles(emitter, words[first : first + 8], 4 * (inner // 2), place)
        for half in range(2):
            first = 32 + 8 * part + 4 * half
            pairs = [field(emitter, word, 2 * inner, PAIRS) for word in words[first : first + 4]]
            emitter.store(joined(emitter, pairs, 2), emitter.address(place, 256 + 64 * half), 1)


def iq4_xs(rows: SourceRows, start: Value, quads: Value, steps: Value) -> None:
    emitter, builder = rows.emitter, rows.emitter.builder
    words = rows.words(start, 34)
    emitter.store(builder.trunc(words[0], emitter.i16), steps, 1)
    for sub in range(SUPER):
        low = field(emitter, words[1], 4 * sub, 15)
        scale = joined(emitter, [low, field(emitter, words[0], 16 + 2 * sub, 3)], 4)
        scale = builder.sub(scale, emitter.constant(32))
        place = emitter.address(steps, 32 + 16 * sub)
        emitter.store(builder.trunc(scale, V16I8), place, 1)
    for index, word in enumerate(words[2:]):
        emitter.store(word, emitter.address(quads, 64 * index), 1)


def mxfp4(rows: SourceRows, start: Value, quads: Value, steps: Value) -> None:
    emitter = rows.emitter
    emitter.store(rows.bytes(start), steps, 1)
    for index, word in enumerate(rows.words(emitter.address(start, 1), 4)):
        emitter.store(word, emitter.address(quads, 64 * index), 1)


def nvfp4(rows: SourceRows, start: Value, quads: Value, steps: Value) -> None:
    emitter = rows.emitter
    words = rows.words(start, 9)
    store_bytes(emitter, words[:1], steps)
    for block in range(2):
        found = []
        for part in range(2):
            first = 1 + 4 * block + 2 * part
            both = words[first : first + 2]
            found += [field(emitter, word, shift, NIBBLES) for shift in (0, 4) for word in both]
        store_block(emitter, 4, found, emitter.address(quads, 256 * block))


def q3_k(rows: SourceRows, start: Value, quads: Value, steps: Value) -> None:
    emitter, builder = rows.emitter, rows.emitter.builder
    emitter.store(rows.shorts(emitter.address(start, 108)), steps, 1)
    words = rows.words(start, 27)
    factors = []
    for index in range(4):
        low = field(emitter, words[24 + index % 2], 4 * (index // 2), NIBBLES)
        packed = joined(emitter, [low, field(emitter, words[26], 2 * index, PAIRS)], 4)
        # less 32, without a carry from byte to byte: what bit 5 lacks goes to the bits above
        below = field(emitter, builder.xor(packed, emitter.constant(0x20202020)), 5, BITS)
        sign = builder.mul(below, emitter.constant(0xE0))
        factors.append(builder.or_(field(emitter, packed, 0, 0x1F1F1F1F), sign))
    store_bytes(emitter, factors, emitter.address(steps, 32))
    for sub in range(SUPER):
        codes = _pairs_of(emitter, words[8:24], sub)
        high = [field(emitter, word, sub, BITS) for word in words[:8]]
        codes = [joined(emitter, list(both), 2) for both in zip(codes, high, strict=True)]
        store_block(emitter, 3, codes, emitter.address(quads, 192 * sub))


def q2_k(rows: SourceRows, start: Value, quads: Value, steps: Value) -> None:
    emitter = rows.emitter
    for index in range(2):
        half = rows.shorts(emitter.address(start, 80 + 2 * index))
        emitter.store(half, emitter.address(steps, 32 * index), 1)
    words = rows.words(start, 20)
    store_bytes(emitter, words[:4], emitter.address(steps, 64))
    for sub in range(SUPER):
        codes = _pairs_of(emitter, words[4:], sub)
        store_block(emitter, 2, codes, emitter.address(quads, 128 * sub))


def tq2_0(rows: SourceRows, start: Value, quads: Value, steps: Value) -> None:
    emitter = rows.emitter
    emitter.store(rows.shorts(emitter.address(start, 64)), steps, 1)
    words = rows.words(start, 16)
    for sub in range(SUPER):
        codes = _pairs_of(emitter, words, sub)
        store_block(emitter, 2, codes, emitter.address(quads, 128 * sub))


def tq1_0(rows: SourceRows, start: Value, quads: Value, steps: Value) -> None:
    """Digits to base 3, five in a byte; a byte of the last four columns' runs has four."""
    emitter = rows.emitter
    emitter.store(rows.shorts(emitter.address(start, 52)), steps, 1)
    words = rows.words(start, 13)
    codes = []
    for first, last, digits in ((0, 8, 5), (8, 12, 5), (12, 13, 4)):
        for digit in range(digits):
            codes += [_ternary(emitter, word, 3**digit) for word in words[first:last]]
    for sub in range(SUPER):
        store_block(emitter, 2, codes[8 * sub : 8 * sub + 8], emitter.address(quads, 128 * sub))


def _ternary(emitter: Emitter, word: Value, power: int) -> Value:
    """The digit that each byte begins with, as a fraction of 256, once multiplied by a power."""
    builder, found = emitter.builder, []
    for shift in (0, 8):
        fraction = builder.mul(field(emitter, word, shift, 0x00FF00FF), emitter.constant(power))
        three = builder.mul(field(emitter, fraction, 0, 0x00FF00FF), emitter.constant(3))
        found.append(field(emitter, three, 8, 0x00030003))
    return joined(emitter, found, 8)


def _pairs_of(emitter: Emitter, words: list[Value], sub: int) -> list[Value]:
    """The 8 quads of a block from a super-block's 16 words of pairs: four blocks share 8 words."""
    first = 8 * (sub // 4)
    return [field(emitter, word, 2 * (sub % 4), PAIRS) for word in words[first : first + 8]]
