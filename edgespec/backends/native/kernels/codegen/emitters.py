"""All functions that are emitted as LLVM text, by group and name: what is compiled on first use,
and what the library of precompiled functions is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple

from edgespec.backends.native.kernels.codegen import arm, x86
from edgespec.backends.native.kernels.codegen.emit import Function
from edgespec.backends.native.kernels.codegen.portable import PORTABLE
from edgespec.backends.native.kernels.matmul import float_tile, integer_tile, tile
from edgespec.backends.native.kernels.matmul.integer_tile import Operations
from edgespec.memory.kv.arena import LATENT
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.models.spec import TensorType

OPERATIONS: dict[str, Operations] = {
    "avx512vnni": x86.AVX512VNNI,
    "avxvnni": x86.AVXVNNI,
    "avx2": x86.AVX2,
    "neon-i8mm": arm.I8MM,
    "neon-dotprod": arm.DOTPROD,
    "plain": PORTABLE,
}
"""By instruction set; plain loops have tiles that Numba makes (`matmul/plain.py`)."""


class Emitted(NamedTuple):
    """A function to be made: several names may mean one."""

    name: str
    """What it calls itself."""
    emit: Callable[[], Function]


def emit_tile(kind: TensorType, num_tokens: int, operations: Operations) -> Function:
    """The tile function for one type and number of tokens."""
    emit = float_tile.emit_tile if tile.FORMATS[kind].is_float else integer_tile.emit_tile
    return emit(kind, num_tokens, operations)


def _module(name: str) -> Any:
    """Imported when it is needed: a Llama does without most."""
    return import_module(f"edgespec.backends.native.kernels.{name}")


def _by_name(functions: Mapping[str, Callable[[], Function]]) -> dict[str, Emitted]:
    return {name: Emitted(name, emit) for name, emit in functions.items()}


def _rows(isa: str) -> dict[str, Emitted]:
    return _by_name(_module("row_ops").FUNCTIONS)


def _activations(isa: str) -> dict[str, Emitted]:
    made = _by_name(_module("activations").FUNCTIONS)
    return made | {"silu": Emitted("gate", made["silu"].emit)}


def _experts(isa: str) -> dict[str, Emitted]:
    return _by_name(_module("moe.row_functions").FUNCTIONS)


def _attention(isa: str) -> dict[str, Emitted]:
    functions = _module("attention.inner_loops").functions
    made: dict[str, Emitted] = {}
    for kv_type in (*KV_TYPES, LATENT):
        made |= _by_name(functions(kv_type, OPERATIONS[isa]))
    return made


def _recurrent(isa: str) -> dict[str, Emitted]:
    sweeps = _module("recurrent.state").functions(OPERATIONS[isa].lanes)
    return _by_name(sweeps | _module("recurrent.inputs").FUNCTIONS)


def _packers(isa: str) -> dict[str, Emitted]:
    pack, emit = _module("matmul.pack"), _module("matmul.emit_pack").emit_packer
    return _by_name({pack.function_name(kind): partial(emit, kind) for kind in tile.FORMATS})


def _tiles(isa: str) -> dict[str, Emitted]:
    operations = OPERATIONS[isa]
    return {
        f"tile_{kind.name}_{size}": Emitted(
            tile.function_name(kind, size, operations.unrolled),
            partial(emit_tile, kind, size, operations),
        )
        for kind, form in tile.FORMATS.items()
        for size in form.sizes
    }


_GROUPS: dict[str, Callable[[str], dict[str, Emitted]]] = {
    "rows": _rows,
    "activations": _activations,
    "experts": _experts,
    "attention": _attention,
    "recurrent": _recurrent,
    "packers": _packers,
    "tiles": _tiles,
}


@cache
def group_of(isa: str, group: str) -> Mapping[str, Emitted]:
    """One group's functions for an instruction set, by the name they are asked for with."""
    return _GROUPS[group](isa)


def everything(isa: str) -> Iterable[tuple[str, Emitted]]:
    """All functions of an instruction set."""
    for group in _GROUPS:
        if (isa, group) != ("plain", "tiles"):
            yield from group_of(isa, group).items()
