"""The table of instruction sets: which exist here, which one is used, and where its functions are.

`EDGESPEC_ISA` forces one by name. Each is a target of its own: what a newer processor has besides
is switched off, so a forced set computes here as it does on the processors it is meant for. A new
one needs a row in `_SETS` and its `Operations` in `emitters.py`.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from typing import TYPE_CHECKING

from edgespec.backends.native.kernels.attention.loop_table import loop_table
from edgespec.backends.native.kernels.codegen.host import host_features
from edgespec.backends.native.kernels.matmul import plain
from edgespec.errors import BackendError, OptionError
from edgespec.models.spec import TensorType
from edgespec.system import precompiled
from edgespec.system.jit import SOURCE
from edgespec.system.records import dataclass

if TYPE_CHECKING:
    from edgespec.backends.native.kernels.codegen.emit import Function
    from edgespec.backends.native.kernels.codegen.machine_code import Processor
    from edgespec.backends.native.kernels.matmul.integer_tile import Operations


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set."""

    needs: frozenset[str]
    """Features a processor must have, as LLVM names them."""
    without: tuple[str, ...]
    """Beginnings of the names of features that are switched off."""


_SCALABLE = ("sve", "sme")
_WIDE = ("avx512", "evex512", "avx10", "amx")
_V3 = frozenset({"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt"})
_SETS: dict[str, Isa] = {
    "avx512vnni": Isa(
        _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni"}, ()
    ),
    "avxvnni": Isa(_V3 | {"avxvnni"}, _WIDE),
    "avx2": Isa(_V3, (*_WIDE, "avxvnni")),
    "neon-i8mm": Isa(frozenset({"dotprod", "i8mm"}), _SCALABLE),
    "neon-dotprod": Isa(frozenset({"dotprod"}), (*_SCALABLE, "i8mm")),
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
    from edgespec.backends.native.kernels.codegen.machine_code import host_processor

    return host_processor(() if isa == PLAIN else _SETS[isa].without)


def operations(isa: str) -> Operations:
    """What an instruction set brings of its own."""
    from edgespec.backends.native.kernels.codegen.emitters import OPERATIONS

    return OPERATIONS[isa]


def emit_tile(isa: str, kind: TensorType, num_tokens: int) -> Function:
    """The tile function of an instruction set (not of plain loops), not compiled yet."""
    from edgespec.backends.native.kernels.codegen import emitters

    return emitters.emit_tile(kind, num_tokens, operations(isa))


@cache
def address(isa: str, group: str, name: str) -> int:
    """Where an emitted function of one of the groups in `emitters.py` is: in the library, or
    compiled on first use; 0 where there is none of this name.
    """
    if SOURCE == "library":
        return precompiled.library().find(f"{isa}.{name}")
    from edgespec.backends.native.kernels.codegen.emitters import group_of
    from edgespec.backends.native.kernels.codegen.machine_code import compile_named

    emitted = group_of(isa, group).get(name)
    if emitted is None:
        return 0
    return compile_named(emitted.name, emitted.emit, processor(isa), variant=isa)


def row_addresses(isa: str, interleaved: bool) -> tuple[int, ...]:
    """Where the row operations are, in the order of the kernels' table; RoPE is of two kinds."""
    rotate = "rotate_pairs" if interleaved else "rotate_halves"
    names = ("rms_norm", "quantise", "gate", rotate, "maxima")
    return tuple(address(isa, "rows", name) for name in names)


def activation_address(isa: str, name: str) -> int:
    """Where one of `activations.FUNCTIONS` is."""
    return address(isa, "activations", name)


def expert_address(isa: str, name: str) -> int:
    """Where one of `row_functions.FUNCTIONS` is."""
    return address(isa, "experts", name)


@cache
def attention_addresses(isa: str, kv_type: str) -> tuple[int, ...]:
    """The part of the kernels' table that is attention's: addresses, and the most rows at once."""
    return tuple(loop_table(kv_type, lambda name: address(isa, "attention", name)))


def tile_address(isa: str, kind: TensorType, num_tokens: int) -> int:
    """Where the tile function for `num_tokens` (one of the format's sizes) is."""
    if isa == PLAIN:
        return plain.address(kind)
    return address(isa, "tiles", f"tile_{kind.name}_{num_tokens}")
