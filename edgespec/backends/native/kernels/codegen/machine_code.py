"""Turn LLVM text into functions at an address, and remember the machine code on disk.

Emitting text takes longer than loading code, so code is found again by a hash of all sources that
may emit any, with the function's name, the processor, its features and the llvmlite version: an
edited kernel, another machine or another version asks for another file, so stale code cannot be
loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from edgespec.backends.native.kernels.codegen.emit import Function
from edgespec.backends.native.kernels.codegen.host import known_features
from edgespec.system.disk_cache import (
    cache_folder,
    code_key,
    is_object_code,
    load_checked,
    store_checked,
)
from edgespec.system.numba_compiler import CACHING
from edgespec.system.records import dataclass

_LOADED, _LINKED = "jitdefault", "small"
"""How far code may be from what it refers to: anywhere in this process, or near in one library."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What machine code is made for, in LLVM's words."""

    triple: str
    cpu: str
    features: str
    """"+avx2,-avx512f,..."."""


def host_processor(without: Iterable[str] = ()) -> Processor:
    """This machine's processor, without the features whose names begin with one of `without`."""
    beginnings = tuple(without)
    text = ",".join(
        f"{'+' if present and not name.startswith(beginnings) else '-'}{name}"
        for name, present in sorted(known_features().items())
    )
    return Processor(llvm.get_default_triple(), llvm.get_host_cpu_name(), text)


def object_of(module: Any, processor: Processor) -> bytes:
    """An object file, to be linked, of an LLVM module that is optimised already, without what
    nobody needs.
    """
    machine = _target_machine(processor, _LINKED)
    module.triple, module.data_layout = processor.triple, str(machine.target_data)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    code: bytes = machine.emit_object(module)
    return code


@cache
def _target_machine(processor: Processor, codemodel: str = _LOADED) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(processor.triple).create_target_machine(
        cpu=processor.cpu,
        features=processor.features,
        opt=3,
        reloc="pic",
        codemodel=codemodel,
    )


@cache
def _engine() -> Any:
    """The one execution engine all kernels live in, for as long as the process does."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(host_processor()))


def optimised(text: str, processor: Processor, codemodel: str = _LOADED) -> tuple[Any, Any]:
    """An LLVM module given as text, optimised for a processor, and what turns it into code."""
    machine = _target_machine(processor, codemodel)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = processor.triple, str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return module, machine


def object_code(text: str, processor: Processor, *, linked: bool = False) -> bytes:
    """An object file with the functions of an LLVM module given as text; for this process, or to be
    linked.
    """
    module, machine = optimised(text, processor, _LINKED if linked else _LOADED)
    code: bytes = machine.emit_object(module)
    return code


def _cache_path(text: str, processor: Processor) -> Path:
    digest = hashlib.blake2b(digest_size=20)
    for part in (text, *astuple(processor), llvmlite.__version__):
        digest.update(part.encode() + b"\0")
    return cache_folder() / "tiles" / f"{digest.hexdigest()}.o"


@cache
def compile_function(text: str, name: str, processor: Processor) -> int:
    """The address of function `name` of an LLVM module given as text; remembered by the text."""
    return _address(_cache_path(text, processor), lambda: text, name, processor)


_named: dict[tuple[str, str, Processor], int] = {}


def compile_named(
    name: str, emit: Callable[[], Function], processor: Processor, variant: str = ""
) -> int:
    """The same for a function of this name, emitted only where no earlier process left its code.

    `variant` tells functions apart that have one name and are made for one processor.
    """
    key = name, variant, processor
    if key not in _named:
        path = _cache_path("\0".join([code_key(), variant, name]), processor)
        _named[key] = _address(path, lambda: emit()[0], name, processor)
    return _named[key]


def _address(path: Path, text: Callable[[], str], name: str, processor: Processor) -> int:
    code = load_checked(path) if CACHING else None
    if code is not None and (address := _loaded(code, name)):
        return address
    code = object_code(text(), processor)
    if CACHING:
        store_checked(path, code)
    return _loaded(code, name)


def _loaded(code: bytes, name: str) -> int:
    """Where a function of an object file is, 0 when the file has none of this name."""
    if not is_object_code(code):
        return 0
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return int(engine.get_function_address(name))
