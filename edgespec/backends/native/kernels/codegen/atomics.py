"""What threads need to wait for each other inside kernels: atomic words at addresses, a pause, and
the interpreter's locks.

With the JIT off there is one thread, and plain Python stands in.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Any

from edgespec.system.jit import SOURCE

_ORDER = "seq_cst"

ACQUIRE, RELEASE = (
    ctypes.cast(function, ctypes.c_void_p).value or 0
    for function in (ctypes.pythonapi.PyThread_acquire_lock, ctypes.pythonapi.PyThread_release_lock)
)
"""Addresses of CPython's own lock functions, which need no GIL: they differ from run to run."""

if SOURCE != "numba":
    _LOCKING = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)

    def atomic_load(address: int) -> int:
        return ctypes.c_int64.from_address(int(address)).value

    def atomic_swap(address: int, value: int) -> int:
        word = ctypes.c_int64.from_address(int(address))
        before, word.value = word.value, value
        return before

    def atomic_add(address: int, value: int) -> int:
        return atomic_swap(address, atomic_load(address) + value)

    def spin_pause() -> None:
        raise AssertionError("one thread has nobody to wait for")

    def call_lock(function: int, lock: int, argument: int) -> None:
        """Without the GIL, so that who reads weights from disk goes on."""
        _LOCKING(int(function))(int(lock), int(argument))

else:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    from edgespec.backends.native.kernels.codegen.emit import I32, I64, VOID

    @intrinsic
    def atomic_load(typing: Any, address: Any) -> Any:
        """The int64 at an address, and with it all that its writer wrote before."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], I64.as_pointer())
            return builder.load_atomic(pointer, _ORDER, 8)

        return types.int64(types.intp), generate

    def _exchange(operation: str) -> Any:
        @intrinsic
        def exchange(typing: Any, address: Any, value: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                pointer = builder.inttoptr(arguments[0], I64.as_pointer())
                return builder.atomic_rmw(operation, pointer, arguments[1], _ORDER)

            return types.int64(types.intp, types.int64), generate

        return exchange

    atomic_swap, atomic_add = _exchange("xchg"), _exchange("add")
    """(address, value) -> the int64 that stood there before."""

    @intrinsic
    def spin_pause(typing: Any) -> Any:
        """Tell the processor that this thread is waiting."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            machine = platform.machine().lower()
            if machine in ("x86_64", "amd64"):
                kind = ir.FunctionType(VOID, [])
                builder.call(_declare(builder.module, kind, "llvm.x86.sse2.pause"), [])
            elif machine in ("aarch64", "arm64"):
                kind = ir.FunctionType(VOID, [I32])
                hint = _declare(builder.module, kind, "llvm.aarch64.hint")
                builder.call(hint, [ir.Constant(I32, 1)])
            return context.get_dummy_value()

        return types.void(), generate

    @intrinsic
    def call_lock(typing: Any, function: Any, lock: Any, argument: Any) -> Any:
        """Call PyThread_acquire_lock(lock, 1), or PyThread_release_lock(lock), at an address."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # The one-argument function ignores the second register.
            kind = ir.FunctionType(VOID, [I64, I32])
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            builder.call(pointer, [arguments[1], builder.trunc(arguments[2], I32)])
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), generate


def _declare(module: Any, kind: Any, name: str) -> Any:
    return module.globals.get(name) or ir.Function(module, kind, name)
