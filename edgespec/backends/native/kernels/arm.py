"""What 64-bit ARM instruction sets bring of their own: NEON with dotprod, and with i8mm."""

from __future__ import annotations

from llvmlite import ir

from edgespec.backends.native.kernels.emit import I8, I32, Emitter, Value
from edgespec.backends.native.kernels.integer_tile import Operations

_BYTES, _INTS = ir.VectorType(I8, 16), ir.VectorType(I32, 4)


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


def _order(places: range | list[int]) -> Value:
    kind = ir.VectorType(I32, len(places))
    return ir.Constant(kind, [ir.Constant(I32, place) for place in places])


def _dot(
    emitter: Emitter, starts: list[Value], quads: list[Value], rows: list[Value], largest: int
) -> list[Value]:
    """sdot: four products of i8 and i8 added to each int32 lane, with one of four quads of
    activations that a register holds.
    """
    builder = emitter.builder
    if largest > 127:
        offset = emitter.constant(-0x7F7F7F80)  # 128 in each byte
        quads = [builder.xor(quad, offset) for quad in quads]
    weights = [
        [builder.bitcast(piece, _BYTES) for piece in _pieces(emitter, quad)] for quad in quads
    ]
    sums = []
    for start, row in zip(starts, rows, strict=True):
        accs = _pieces(emitter, start)
        for i, pieces in enumerate(weights):
            if i % 4 == 0:
                four = emitter.load(emitter.address(row, 4 * i), _INTS)
            lane = builder.shuffle_vector(four, four, _order([i % 4] * 4))
            lane = builder.bitcast(lane, _BYTES)
            accs = [
                emitter.call("llvm.aarch64.neon.sdot.v4i32.v16i8", _INTS, [acc, piece, lane])
                for acc, piece in zip(accs, pieces, strict=True)
            ]
        sums.append(_join(emitter, accs))
    return sums


def _lookup(emitter: Emitter, values: bytes, indices: Value) -> Value:
    """tbl: a table of 16 bytes."""
    builder = emitter.builder
    table = ir.Constant(_BYTES, [ir.Constant(I8, value) for value in values])
    found = [
        emitter.call(
            "llvm.aarch64.neon.tbl1.v16i8", _BYTES, [table, builder.bitcast(piece, _BYTES)]
        )
        for piece in _pieces(emitter, indices)
    ]
    return _join(emitter, [builder.bitcast(piece, _INTS) for piece in found])


DOTPROD = Operations(lanes=8, dot=_dot, lookup=_lookup, signed=True)
