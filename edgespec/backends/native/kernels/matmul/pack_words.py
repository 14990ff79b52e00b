"""What packing is made of: words of 16 rows of the file, and how they are taken apart and stored.

A lane of a vector is a row, so that four bytes of each row become one word of 64 bytes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import (
    I8,
    I16,
    I32,
    V16I8,
    V16I32,
    Emitter,
    Value,
)
from edgespec.backends.native.kernels.matmul import tile
from edgespec.system.records import dataclass

NIBBLES, PAIRS, BITS = 0x0F0F0F0F, 0x03030303, 0x01010101
SUPER = 8
"""Blocks of 32 columns in a super-block."""


@dataclass(frozen=True, slots=True)
class SourceRows:
    """16 rows of the file, a lane for each."""

    emitter: Emitter
    row_bytes: Value
    space: Value
    """Address of 64 bytes for each word of a block."""

    def bytes(self, start: Value) -> Value:
        """A byte of each row."""
        return self._gather(I8, start)

    def shorts(self, start: Value) -> Value:
        """Two bytes of each row."""
        return self._gather(I16, start)

    def word(self, start: Value) -> Value:
        """Four bytes of each row."""
        return self._gather(I32, start)

    def words(self, start: Value, count: int) -> list[Value]:
        """Consecutive words of each row.

        They go through memory, in a loop: compiling is slow in the number of loads.
        """
        with self.emitter.loop(self.emitter.integer(count)) as index:
            word = self._gather(I32, self.emitter.address(start, (index, 4)))
            self.emitter.store(word, self.emitter.address(self.space, (index, 64)), 1)
        places = [self.emitter.address(self.space, 64 * i) for i in range(count)]
        return [self.emitter.load(place, V16I32) for place in places]

    def _gather(self, kind: Any, start: Value) -> Value:
        found = ir.Constant(ir.VectorType(kind, tile.TILE_ROWS), ir.Undefined)
        for row in range(tile.TILE_ROWS):
            value = self.emitter.load(self.emitter.address(start, (self.row_bytes, row)), kind)
            found = self.emitter.builder.insert_element(found, value, ir.Constant(I32, row))
        return found


def store_block(emitter: Emitter, bits: int, quads: list[Value], place: Value) -> None:
    """A block's 8 quads of unsigned bytes in 2 to 5 bits each (see `tile.py`)."""
    low = 4 if bits >= 4 else 2
    if low == 4:
        store_nibbles(emitter, quads, 0, place)
    else:
        store_pairs(emitter, quads, place)
    if bits > low:
        ones = [field(emitter, quad, low, BITS) for quad in quads]
        emitter.store(joined(emitter, ones, 1), emitter.address(place, 64 * low), 1)


def store_pairs(emitter: Emitter, quads: list[Value], place: Value) -> None:
    """The two lowest bits of each byte of 8 quads: four quads in a word."""
    for half in range(2):
        pairs = [field(emitter, quad, 0, PAIRS) for quad in quads[4 * half : 4 * half + 4]]
        emitter.store(joined(emitter, pairs, 2), emitter.address(place, 64 * half), 1)


def store_nibbles(emitter: Emitter, words: list[Value], shift: int, place: Value) -> None:
    """One nibble of each byte of 8 words: quad i below quad i + 4."""
    nibbles = [field(emitter, word, shift, NIBBLES) for word in words]
    for quad in range(4):
        word = joined(emitter, nibbles[quad::4], 4)
        emitter.store(word, emitter.address(place, 64 * quad), 1)


def store_bytes(emitter: Emitter, words: list[Value], place: Value) -> None:
    """The bytes of all words one after the other, 16 rows of each."""
    builder = emitter.builder
    for index in range(4 * len(words)):
        byte = builder.lshr(words[index // 4], emitter.constant(8 * (index % 4)))
        emitter.store(builder.trunc(byte, V16I8), emitter.address(place, 16 * index), 1)


def field(emitter: Emitter, word: Value, shift: int, mask: int) -> Value:
    moved = emitter.builder.lshr(word, emitter.constant(shift))
    return emitter.builder.and_(moved, emitter.constant(mask))


def joined(emitter: Emitter, fields: list[Value], width: int) -> Value:
    """Fields of `width` bits, the first lowest, in one word."""
    word = fields[0]
    for index, field in enumerate(fields[1:], 1):
        moved = emitter.builder.shl(field, emitter.constant(width * index))
        word = emitter.builder.or_(word, moved)
    return word


def high_bits(emitter: Emitter, bits: Value) -> Value:
    """From bit c for column c to bit c // 4 of byte c % 4."""
    builder = emitter.builder
    found = []
    for byte in range(4):
        every = field(emitter, bits, byte, 0x11111111)
        for shift, mask in ((3, 0x03030303), (6, 0x000F000F), (12, 0xFF)):
            moved = builder.lshr(every, emitter.constant(shift))
            every = builder.and_(builder.or_(every, moved), emitter.constant(mask))
        found.append(every)
    return joined(emitter, found, 8)
