"""The table of instruction sets: which exist here, which one is used, and where its tile functions
are.

`EDGESPEC_ISA` forces one by name. A new one needs a row in `_SETS` and a feature to look for.
"""

from __future__ import annotations

import os
from functools import cache

from llvmlite import ir

from edgespec.backends.native.kernels import float_tile, integer_tile, plain, tile
from edgespec.backends.native.kernels.emit import I8, V16I32, Emitter, Value
from edgespec.backends.native.kernels.integer_tile import Operations
from edgespec.backends.native.kernels.machine_code import compile_function, host_features
from edgespec.errors import OptionError
from edgespec.models.spec import TensorType


def _dot_avx512vnni(
    emitter: Emitter, sums: Value, weights: list[Value], activations: list[Value], largest: int
) -> Value:
    for quad, four in zip(weights, activations, strict=True):
        sums = emitter.call("llvm.x86.avx512.vpdpbusd.512", V16I32, [sums, quad, four])
    return sums


def _lookup_avx512(emitter: Emitter, values: bytes, indices: Value) -> Value:
    builder = emitter.builder
    kind = ir.VectorType(I8, 64)
    table = ir.Constant(kind, [ir.Constant(I8, value) for value in values * 4])
    places = builder.bitcast(indices, kind)
    found = emitter.call("llvm.x86.avx512.pshuf.b.512", kind, [table, places])
    return builder.bitcast(found, V16I32)


_SETS: dict[str, tuple[frozenset[str], Operations]] = {
    "avx512vnni": (
        frozenset({"avx512f", "avx512bw", "avx512vnni"}),
        Operations(_dot_avx512vnni, _lookup_avx512),
    ),
}
PLAIN = "plain"


def available() -> tuple[str, ...]:
    """Names of the instruction sets this machine can run, best first; "plain" always can."""
    names = [name for name, (features, _) in _SETS.items() if features <= host_features()]
    return (*names, PLAIN)


def chosen() -> str:
    """The instruction set in use: the one `EDGESPEC_ISA` names, or the best there is."""
    names = available()
    forced = os.environ.get("EDGESPEC_ISA")
    if not forced:
        return names[0]
    if forced not in names:
        raise OptionError(
            f"EDGESPEC_ISA asks for {forced!r}, but this processor can run {', '.join(names)}; "
            "unset it or name one of these"
        )
    return forced


@cache
def tile_address(isa: str, kind: TensorType, num_tokens: int) -> int:
    """Where the tile function for `num_tokens` (one of the format's sizes) is; compiled on first
    use.
    """
    if isa == PLAIN:
        return plain.address(kind)
    if tile.FORMATS[kind].is_float:
        return compile_function(*float_tile.emit_tile(kind, num_tokens))
    return compile_function(*integer_tile.emit_tile(kind, num_tokens, _SETS[isa][1]))
