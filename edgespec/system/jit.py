"""How functions become machine code.

`SOURCE` says where machine code comes from in this process: "library", functions that were compiled
when the package was built (`precompile.py`); "numba", compiled here and cached on disk; "python",
nothing is compiled (NUMBA_DISABLE_JIT=1). Modules with kernels import the decorators below and
never Numba, so they can be imported where there is none.

Kernels take arrays and scalars, fill buffers they were handed, allocate nothing and raise nothing.
Whatever is called from Python, or by address, is in `entries.ENTRIES`, the one list from which both
sources serve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from edgespec.system import precompiled
from edgespec.system.entries import ENTRIES, Entry, Signature, name_of

Function = TypeVar("Function", bound=Callable[..., Any])

SOURCE = precompiled.chosen().source


Types = str | tuple[Any, ...]
"""A type of an argument, or of a tuple of them (`entries.Signature`)."""


@overload
def kernel(function: Function, /) -> Function: ...


@overload
def kernel(
    *arguments: Types, result: str | tuple[str, ...] = ()
) -> Callable[[Function], Function]: ...


def kernel(*arguments: Any, result: str | tuple[str, ...] = ()) -> Any:
    """Compile for one thread, every float operation in the order it is written; for calls from
    Python with arguments of these types (`entries.Signature`), and from other kernels.

    Without types (`@kernel`), for what is no part of the package: only Numba compiles it.
    """
    if len(arguments) == 1 and callable(arguments[0]):
        return _compile("kernel", arguments[0])
    signature = Signature.of(arguments, result)

    def decorate(function: Function) -> Function:
        name = name_of(function)
        if function.__code__.co_argcount != len(arguments):
            raise TypeError(f"{name} says the types of {len(arguments)} arguments and takes others")
        if SOURCE == "library":
            return precompiled.library().kernel(name, signature)  # type: ignore[return-value]
        compiled = _compile("kernel", function)
        ENTRIES[name] = Entry(name, lambda: compiled, signature)
        return compiled

    return decorate


def entry(function: Function) -> Function:
    """Let a function of a table's address and two numbers be called by its own address, which
    `addresses.address_of` tells.
    """
    ENTRIES[name_of(function)] = Entry(name_of(function), lambda: function)
    return function


def inner_kernel(function: Function) -> Function:
    """Compile for calls from other kernels only: no reference counts, no wrapper for Python.

    Saves most of the compile time of functions that take many arrays.
    """
    return _compile("inner_kernel", function)


def inlined_kernel(function: Function) -> Function:
    """Compile into its callers: what is constant there, such as a layout, is constant here.

    For functions without loops only: LLVM optimises them before they are inlined and once more
    after, and llvmlite 0.50 makes an endless loop of some that it has unrolled the first time.
    """
    return _compile("inlined_kernel", function)


def _compile(kind: str, function: Function) -> Function:
    if SOURCE != "numba":
        return function
    from edgespec.system import numba_compiler

    return getattr(numba_compiler, kind)(function)  # type: ignore[no-any-return]
