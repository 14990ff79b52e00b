"""The table of instruction sets: which exist here, which one is used, and where its tile functions
are.

`EDGESPEC_ISA` forces one by name. A new one needs a row in `_DOTS` and a feature to look for.
"""

from __future__ import annotations

import os
from functools import cache

from edgespec.backends.native.kernels import float_tile, integer_tile, plain, tile
from edgespec.backends.native.kernels.emit import V16I32, Emitter, Value
from edgespec.backends.native.kernels.machine_code import compile_function, host_features
from edgespec.errors import OptionError
from edgespec.models.spec import TensorType


def _vnni_512(emitter: Emitter, sums: Value, weights: Value, activations: Value) -> Value:
    name = "llvm.x86.avx512.vpdpbusd.512"
    return emitter.call(name, V16I32, [sums, weights, activations])


_DOTS: dict[str, tuple[frozenset[str], integer_tile.Dot]] = {
    "avx512vnni": (frozenset({"avx512f", "avx512vnni"}), _vnni_512),
}
PLAIN = "plain"


def available() -> tuple[str, ...]:
    """Names of the instruction sets this machine can run, best first; "plain" always can."""
    names = [name for name, (features, _) in _DOTS.items() if features <= host_features()]
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
    return compile_function(*integer_tile.emit_tile(kind, num_tokens, _DOTS[isa][1]))
