"""Repack weights from a file's own blocks into tiles (see `tile.py`).

No value changes: every quantised integer and every scale keeps its bits; only their places do. The
16 rows of a tile are the 16 lanes of a vector, so that four bytes of each row become one word of 64
bytes. The file's blocks are those of ggml: scales first (in Q6_K last), high bits before low ones
(in Q6_K after them), and two nibbles of a byte 16 columns apart (in super-blocks 32, in Q6_K 64).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import (
    I16,
    I32,
    V16I8,
    V16I32,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.codegen.machine_code import compile_named, host_processor
from edgespec.backends.native.kernels.matmul import tile
from edgespec.models.spec import TensorType

NUM_ARGUMENTS = 6
_NIBBLES, _PAIRS, _BITS = 0x0F0F0F0F, 0x03030303, 0x01010101


@cache
def packer(kind: TensorType) -> Callable[[int, int, int, int, int, int], None]:
    """The function that fills tiles of a type.

    It takes the address of the first raw row, the bytes from one row to the next, the number of
    tiles (of 16 rows each), that of groups of columns in a row, and the addresses of the first
    tile's weights and scales.
    """
    address = compile_named(_name(kind), partial(emit_packer, kind), host_processor())
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * NUM_ARGUMENTS)(address)


def _name(kind: TensorType) -> str:
    return f"pack_{kind.name}"


def emit_packer(kind: TensorType) -> Function:
    """LLVM text and name of the function."""
    form, emitter = tile.FORMATS[kind], Emitter(_name(kind), NUM_ARGUMENTS)
    source, row_bytes, num_tiles, num_groups, weights, scales = emitter.arguments
    group_bytes = form.group // kind.block_size * kind.block_bytes
    rows = _Rows(emitter, row_bytes, emitter.stack_bytes(64 * (group_bytes // 4)))
    with emitter.loop(num_tiles) as index:
        row = emitter.builder.mul(index, emitter.integer(tile.TILE_ROWS))
        first = emitter.address(source, (row, row_bytes))
        done = emitter.builder.mul(index, num_groups)
        with emitter.loop(num_groups) as group:
            start = emitter.address(first, (group, group_bytes))
            place = emitter.builder.add(done, group)
            quads = emitter.address(weights, (place, form.weight_bytes))
            steps = emitter.address(scales, (place, form.scale_bytes))
            if form.is_float:
                _pack_floats(rows, start, form.layout.bits, quads)
            elif form.layout.blocks == 1:
                _pack_block(rows, start, form.layout, quads, steps)
            elif kind is TensorType.Q6_K:
                _pack_q6_k(rows, start, quads, steps)
            else:
                _pack_super_block(rows, start, form.layout, quads, steps)
    return emitter.done()


@dataclass(frozen=True, slots=True)
class _Rows:
    """16 rows of the file, a lane for each."""

    emitter: Emitter
    row_bytes: Value
    space: Value
    """Address of 64 bytes for each word of a block."""

    def shorts(self, start: Value) -> Value:
        """Two bytes of each row."""
        return self._gather(I16, start)

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


def _pack_floats(rows: _Rows, start: Value, bits: int, target: Value) -> None:
    """Two columns."""
    emitter, builder = rows.emitter, rows.emitter.builder
    words = rows.words(start, bits // 16)
    if bits == 16:
        words.append(builder.lshr(words[0], emitter.constant(16)))
        words = [builder.trunc(word, emitter.i16) for word in words]
    for index, word in enumerate(words):
        emitter.store(word, emitter.address(target, 2 * bits * index), 1)


def _pack_block(rows: _Rows, start: Value, layout: tile.Layout, quads: Value, steps: Value) -> None:
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
        emitter.store(_high_bits(emitter, words.pop(0)), emitter.address(quads, 256), 1)
    for index, word in enumerate(words):
        if layout.bits == 8:  # from int8 to unsigned with an offset of 128
            word = builder.xor(word, emitter.constant(0x80808080))
        emitter.store(word, emitter.address(quads, 64 * index), 1)


def _high_bits(emitter: Emitter, bits: Value) -> Value:
    """From bit c for column c to bit c // 4 of byte c % 4."""
    builder = emitter.builder
    found = []
    for byte in range(4):
        every = _field(emitter, bits, byte, 0x11111111)
        for shift, mask in ((3, 0x03030303), (6, 0x000F000F), (12, 0xFF)):
            moved = builder.lshr(every, emitter.constant(shift))
            every = builder.and_(builder.or_(every, moved), emitter.constant(mask))
        found.append(every)
    return _joined(emitter, found, 8)


def _pack_super_block(
    rows: _Rows, start: Value, layout: tile.Layout, quads: Value, steps: Value
) -> None:
    """Q4_K and Q5_K."""
    emitter = rows.emitter
    for index in range(2):
        half = rows.shorts(emitter.address(start, 2 * index))
        emitter.store(half, emitter.address(steps, 32 * index), 1)
    words = rows.words(emitter.address(start, 4), 3 + 8 * layout.bits)
    low, middle, high = words[:3]
    factors = [
        _field(emitter, low, 0, 0x3F3F3F3F),
        _joined(emitter, [_field(emitter, high, 0, _NIBBLES), _field(emitter, low, 6, _PAIRS)], 4),
        _field(emitter, middle, 0, 0x3F3F3F3F),
        _joined(
            emitter, [_field(emitter, high, 4, _NIBBLES), _field(emitter, middle, 6, _PAIRS)], 4
        ),
    ]
    _store_bytes(emitter, factors, emitter.address(steps, 64))
    for sub in range(8):
        place = emitter.address(quads, 64 * layout.bits * sub)
        first = len(words) - 32 + 8 * (sub // 2)
        _store_nibbles(emitter, words[first : first + 8], 4 * (sub % 2), place)
        if layout.bits == 5:
            bits = [_field(emitter, word, sub, _BITS) for word in words[3:11]]
            emitter.store(_joined(emitter, bits, 1), emitter.address(place, 256), 1)


def _pack_q6_k(rows: _Rows, start: Value, quads: Value, steps: Value) -> None:
    emitter = rows.emitter
    emitter.store(rows.shorts(emitter.address(start, 208)), steps, 1)
    words = rows.words(start, 52)
    _store_bytes(emitter, words[48:], emitter.address(steps, 32))
    for sub in range(8):
        part, inner = divmod(sub, 4)
        place = emitter.address(quads, 384 * sub)
        first = 16 * part + 8 * (inner % 2)
        _store_nibbles(emitter, words[first : first + 8], 4 * (inner // 2), place)
        for half in range(2):
            first = 32 + 8 * part + 4 * half
            pairs = [_field(emitter, word, 2 * inner, _PAIRS) for word in words[first : first + 4]]
            emitter.store(_joined(emitter, pairs, 2), emitter.address(place, 256 + 64 * half), 1)


def _store_nibbles(emitter: Emitter, words: list[Value], shift: int, place: Value) -> None:
    """One nibble of each byte of 8 words: quad i below quad i + 4."""
    nibbles = [_field(emitter, word, shift, _NIBBLES) for word in words]
    for quad in range(4):
        word = _joined(emitter, nibbles[quad::4], 4)
        emitter.store(word, emitter.address(place, 64 * quad), 1)


def _store_bytes(emitter: Emitter, words: list[Value], place: Value) -> None:
    """The bytes of all words one after the other, 16 rows of each."""
    builder = emitter.builder
    for index in range(4 * len(words)):
        byte = builder.lshr(words[index // 4], emitter.constant(8 * (index % 4)))
        emitter.store(builder.trunc(byte, V16I8), emitter.address(place, 16 * index), 1)


def _field(emitter: Emitter, word: Value, shift: int, mask: int) -> Value:
    moved = emitter.builder.lshr(word, emitter.constant(shift))
    return emitter.builder.and_(moved, emitter.constant(mask))


def _joined(emitter: Emitter, fields: list[Value], width: int) -> Value:
    """Fields of `width` bits, the first lowest, in one word."""
    word = fields[0]
    for index, field in enumerate(fields[1:], 1):
        moved = emitter.builder.shl(field, emitter.constant(width * index))
        word = emitter.builder.or_(word, moved)
    return word
