"""The table of instruction sets: which exist here, which one is used, and where its functions are.

`EDGESPEC_ISA` forces one by name. Each is a target of its own: what a newer processor has besides
is switched off, so a forced set computes here as it does on the processors it is meant for. A new
one needs its `Operations` and a row in `_SETS`.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache, partial

from edgespec.backends.native.kernels import activations, row_ops
from edgespec.backends.native.kernels.attention import inner_loops
from edgespec.backends.native.kernels.codegen import arm, x86
from edgespec.backends.native.kernels.codegen.emit import Function
from edgespec.backends.native.kernels.codegen.host import host_features
from edgespec.backends.native.kernels.codegen.machine_code import (
    Processor,
    compile_named,
    host_processor,
)
from edgespec.backends.native.kernels.codegen.portable import PORTABLE
from edgespec.backends.native.kernels.matmul import float_tile, integer_tile, plain, tile
from edgespec.backends.native.kernels.matmul.integer_tile import Operations
from edgespec.backends.native.kernels.moe import row_functions
from edgespec.errors import BackendError, OptionError
from edgespec.models.spec import TensorType


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set."""

    needs: frozenset[str]
    """Features a processor must have, as LLVM names them."""
    without: tuple[str, ...]
    """Beginnings of the names of features that are switched off."""
    operations: Operations


_SCALABLE = ("sve", "sme")
_WIDE = ("avx512", "evex512", "avx10", "amx")
_SETS: dict[str, Isa] = {
    "avx512vnni": Isa(frozenset({"avx512f", "avx512bw", "avx512vnni"}), (), x86.AVX512VNNI),
    "avxvnni": Isa(frozenset({"avx2", "fma", "f16c", "avxvnni"}), _WIDE, x86.AVXVNNI),
    "avx2": Isa(frozenset({"avx2", "fma", "f16c"}), (*_WIDE, "avxvnni"), x86.AVX2),
    "neon-i8mm": Isa(frozenset({"dotprod", "i8mm"}), _SCALABLE, arm.I8MM),
    "neon-dotprod": Isa(frozenset({"dotprod"}), (*_SCALABLE, "i8mm"), arm.DOTPROD),
}
PLAIN = "plain"
_PLAIN_NEEDS = {"x86_64": frozenset({"fma", "f16c"}), "amd64": frozenset({"fma", "f16c"})}
"""What plain loops need besides what all processors of a kind have: LLVM would call the C library,
which has not all of it, and these functions call nothing.
"""


def available() -> tuple[str, ...]:
    """Names of the instruction sets this machine can run, best first; "plain" is the last."""
    names = [name for name, isa in _SETS.items() if isa.needs <= host_features()]
    if _PLAIN_NEEDS.get(platform.machine().lower(), frozenset()) <= host_features():
        names.append(PLAIN)
    return tuple(names)


def chosen() -> str:
    """The instruction set in use: the one `EDGESPEC_ISA` names, or the best there is."""
    names = available()
    if not names:
        raise BackendError(
            "the native backend needs a processor with FMA and F16C (x86-64 since 2013), and this "
            "one, or the virtual machine around it, does not offer them; use --backend reference, "
            "which is slow"
        )
    forced = os.environ.get("EDGESPEC_ISA")
    if not forced:
        return names[0]
    if forced not in names:
        raise OptionError(
            f"EDGESPEC_ISA asks for {forced!r}, but this processor can run {', '.join(names)}; "
            "unset it or name one of these"
        )
    return forced


def processor(isa: str) -> Processor:
    """What an instruction set's code is made for; plain loops are for this machine as it is."""
    return host_processor(() if isa == PLAIN else _SETS[isa].without)


def operations(isa: str) -> Operations:
    """What an instruction set brings of its own."""
    return PORTABLE if isa == PLAIN else _SETS[isa].operations


def row_addresses(isa: str, interleaved: bool) -> tuple[int, ...]:
    """Where the row operations are, in the order of the kernels' table; RoPE is of two kinds."""
    return row_ops.table(interleaved, processor(isa))


def activation_address(isa: str, name: str) -> int:
    """Where one of `activations.FUNCTIONS` is; compiled on first use."""
    return activations.address(name, processor(isa))


def expert_address(isa: str, name: str) -> int:
    """Where one of `row_functions.FUNCTIONS` is; compiled on first use."""
    return row_functions.address(name, processor(isa))


def emit_tile(isa: str, kind: TensorType, num_tokens: int) -> Function:
    """The tile function of an instruction set (not of plain loops), not compiled yet."""
    emit = float_tile.emit_tile if tile.FORMATS[kind].is_float else integer_tile.emit_tile
    return emit(kind, num_tokens, operations(isa))


@cache
def attention_addresses(isa: str, kv_type: str) -> tuple[int, ...]:
    """The part of the kernels' table that is attention's: addresses, and the most rows at once."""
    return tuple(inner_loops.table(isa, kv_type, operations(isa), processor(isa)))


@cache
def tile_address(isa: str, kind: TensorType, num_tokens: int) -> int:
    """Where the tile function for `num_tokens` (one of the format's sizes) is; compiled on first
    use.
    """
    if isa == PLAIN:
        return plain.address(kind)
    name = tile.function_name(kind, num_tokens, operations(isa).unrolled)
    emit = partial(emit_tile, isa, kind, num_tokens)
    return compile_named(name, emit, processor(isa), variant=isa)
