"""What x86-64 instruction sets bring of their own: AVX-512 VNNI, AVX-VNNI and AVX2."""

from __future__ import annotations

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import I8, I16, I32, Emitter, Value
from edgespec.backends.native.kernels.matmul.integer_tile import Operations

_MOST = 32767
"""The largest int16."""


def _dot_vnni(
    emitter: Emitter, starts: list[Value], quads: list[Value], rows: list[Value], largest: int
) -> list[Value]:
    """vpdpbusd: four products of u8 and i8 added to each int32 lane, in one instruction."""
    name = f"llvm.x86.avx512.vpdpbusd.{32 * emitter.lanes}"
    sums = list(starts)
    for i, quad in enumerate(quads):
        for token, row in enumerate(rows):
            four = emitter.splat_load(emitter.address(row, 4 * i), I32)
            sums[token] = emitter.call(name, emitter.i32, [sums[token], quad, four])
    return sums


_BYTES, _SHORTS = ir.VectorType(I8, 32), ir.VectorType(I16, 16)


def _dot_avx2(
    emitter: Emitter, starts: list[Value], quads: list[Value], rows: list[Value], largest: int
) -> list[Value]:
    """vpmaddubsw: pairs of products of u8 and i8 added to an int16, which must not overflow.

    Quads of small weights are added up as int16 while that is exact (8 quads of 4 bits, 2 of 6),
    then widened. One pair of products of 8-bit weights is too large: the sign of weight - 128 moves
    to the activation, and a pair with its absolute value, at most 128, fits.
    """
    builder = emitter.builder
    ones = ir.Constant(_SHORTS, [ir.Constant(I16, 1)] * 16)
    exact = _MOST // (2 * 127 * largest)
    if exact == 0:
        offset = emitter.constant(-0x7F7F7F80)  # 128 in each byte
        signed = [builder.bitcast(builder.xor(quad, offset), _BYTES) for quad in quads]
        not_poison = ir.Constant(ir.IntType(1), 0)
        sizes = [emitter.call("llvm.abs.v32i8", _BYTES, [quad, not_poison]) for quad in signed]
    else:
        sizes = [builder.bitcast(quad, _BYTES) for quad in quads]
    sums = []
    for acc, row in zip(starts, rows, strict=True):
        for first in range(0, len(quads), exact or 1):
            pairs = None
            for i in range(first, min(first + (exact or 1), len(quads))):
                four = emitter.splat_load(emitter.address(row, 4 * i), I32)
                four = builder.bitcast(four, _BYTES)
                if exact == 0:
                    four = emitter.call("llvm.x86.avx2.psign.b", _BYTES, [four, signed[i]])
                more = emitter.call("llvm.x86.avx2.pmadd.ub.sw", _SHORTS, [sizes[i], four])
                pairs = more if pairs is None else builder.add(pairs, more)
            wide = emitter.call("llvm.x86.avx2.pmadd.wd", emitter.i32, [pairs, ones])
            acc = builder.add(acc, wide)
        sums.append(acc)
    return sums


def _lookup(emitter: Emitter, values: bytes, indices: Value) -> Value:
    """vpshufb: a table of 16 bytes in each 128 bits."""
    builder, length = emitter.builder, 4 * emitter.lanes
    kind = ir.VectorType(I8, length)
    table = ir.Constant(kind, [ir.Constant(I8, value) for value in values * (length // 16)])
    name = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b"}[length]
    found = emitter.call(name, kind, [table, builder.bitcast(indices, kind)])
    return builder.bitcast(found, emitter.i32)


AVX512VNNI = Operations(lanes=16, dot=_dot_vnni, lookup=_lookup, unrolled=8)
AVXVNNI = Operations(lanes=8, dot=_dot_vnni, lookup=_lookup)
AVX2 = Operations(lanes=8, dot=_dot_avx2, lookup=_lookup, signed=True)
