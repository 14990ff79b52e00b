"""What 64-bit ARM instruction sets bring of their own: NEON with dotprod, and with i8mm."""

from __future__ import annotations

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import I8, I32, Emitter, Value
from edgespec.backends.native.kernels.matmul.integer_tile import Operations

_BYTES, _INTS = ir.VectorType(I8, 16), ir.VectorType(I32, 4)
_NEON, _KINDS = "llvm.aarch64.neon", "v4i32.v16i8"


def _pieces(emitter: Emitter, vector: Value) -> list[Value]:
    """The vector in registers of 4 lanes."""
    return [
        emitter.builder.shuffle_vector(vector, vector, _order(range(first, first + 4)))
        for first in range(0, emitter.lanes, 4)
    ]


def _join(emitter: Emitter, pieces: list[Value]) -> Value:
    """One vector of all pieces' lanes."""
    while len(pieces) > 1:
        both = range(2 * pieces[0].type.count)
        pieces = [
            emitter.builder.shuffle_vector(left, right, _order(both))
            for left, right in zip(pieces[::2], pieces[1::2], strict=True)
        ]
    return pieces[0]


def _bytes(emitter: Emitter, register: Value) -> Value:
    return emitter.builder.bitcast(register, _BYTES)


def _order(places: range | list[int]) -> Value:
    kind = ir.VectorType(I32, len(places))
    return ir.Constant(kind, [ir.Constant(I32, place) for place in places])


def _weights(emitter: Emitter, quads: list[Value], largest: int) -> list[list[Value]]:
    """All quads as signed bytes, in pieces."""
    builder = emitter.builder
    if largest > 127:
        offset = emitter.constant(-0x7F7F7F80)  # 128 in each byte
        quads = [builder.xor(quad, offset) for quad in quads]
    return [_pieces(emitter, quad) for quad in quads]


def _dot_one(
    emitter: Emitter, starts: list[Value], quads: list[Value], rows: list[Value], largest: int
) -> list[Value]:
    """sdot: four products of i8 and i8 added to each int32 lane, with one of the four quads of
    activations in a register.
    """
    builder = emitter.builder
    (start,), (row,) = starts, rows
    accs = _pieces(emitter, start)
    for i, pieces in enumerate(_weights(emitter, quads, largest)):
        if i % 4 == 0:
            four = emitter.load(emitter.address(row, 4 * i), _INTS)
        lane = _bytes(emitter, builder.shuffle_vector(four, four, _order([i % 4] * 4)))
        accs = [
            emitter.call(f"{_NEON}.sdot.{_KINDS}", _INTS, [acc, _bytes(emitter, piece), lane])
            for acc, piece in zip(accs, pieces, strict=True)
        ]
    return [_join(emitter, accs)]


def _dot_two(
    emitter: Emitter, starts: list[Value], quads: list[Value], rows: list[Value], largest: int
) -> list[Value]:
    """smmla: 2 rows times 2 tokens, eight products each, in one instruction; pairs of quads are
    interleaved to eight columns of a row, and the sums of two tokens taken apart again.
    """
    if len(rows) == 1:
        return _dot_one(emitter, starts, quads, rows, largest)
    first, second = _order([0, 4, 1, 5]), _order([2, 6, 3, 7])
    shuffle = emitter.builder.shuffle_vector
    weights = _weights(emitter, quads, largest)
    start = shuffle(*(_pieces(emitter, each)[0] for each in starts), first)
    accs = [[start, start] for _ in weights[0]]
    for i in range(0, len(quads), 2):
        if i % 4 == 0:
            fours = [emitter.load(emitter.address(row, 4 * i), _INTS) for row in rows]
        both = _order([0, 1, 4, 5]) if i % 4 == 0 else _order([2, 3, 6, 7])
        activations = _bytes(emitter, shuffle(*fours, both))
        for pair, left, right in zip(accs, weights[i], weights[i + 1], strict=True):
            for half, order in enumerate((first, second)):
                eight = _bytes(emitter, shuffle(left, right, order))
                arguments = [pair[half], eight, activations]
                pair[half] = emitter.call(f"{_NEON}.smmla.{_KINDS}", _INTS, arguments)
    return [
        _join(
            emitter,
            [shuffle(*pair, _order([token, token + 2, token + 4, token + 6])) for pair in accs],
        )
        for token in range(2)
    ]


def _lookup(emitter: Emitter, values: bytes, indices: Value) -> Value:
    """tbl: a table of 16 bytes."""
    builder = emitter.builder
    table = ir.Constant(_BYTES, [ir.Constant(I8, value) for value in values])
    found = [
        emitter.call(f"{_NEON}.tbl1.v16i8", _BYTES, [table, _bytes(emitter, piece)])
        for piece in _pieces(emitter, indices)
    ]
    return _join(emitter, [builder.bitcast(piece, _INTS) for piece in found])


DOTPROD = Operations(lanes=8, dot=_dot_one, lookup=_lookup, signed=True)
I8MM = Operations(lanes=8, dot=_dot_two, lookup=_lookup, tokens=2, signed=True)
