"""What NumPy cannot say inside a kernel: addresses, half precision, one-rounding multiply-add,
calls by address.

With the JIT off (NUMBA_DISABLE_JIT=1) plain Python stands in, so that kernels can be stepped
through; with precompiled kernels nobody calls it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.matmul import tile
from edgespec.system.jit import SOURCE

if SOURCE != "numba":

    def _loader(kind: Any, source: Any = None, widen: str = "") -> Any:
        return lambda address: kind.from_address(int(address)).value

    def _storer(kind: Any, source: Any = None) -> Any:
        def store(address: int, value: Any) -> None:
            kind.from_address(int(address)).value = getattr(value, "item", lambda: value)()

        return store

    load_byte, store_byte = _loader(ctypes.c_uint8), _storer(ctypes.c_uint8)
    load_short, store_short = _loader(ctypes.c_uint16), _storer(ctypes.c_uint16)
    load_float, store_float = _loader(ctypes.c_float), _storer(ctypes.c_float)
    load_int = _loader(ctypes.c_int32)
    load_long, store_long = _loader(ctypes.c_int64), _storer(ctypes.c_int64)
    load_double = _loader(ctypes.c_double)

    def fma(left: Any, right: Any, addend: Any) -> Any:
        return np.float32(np.float64(left) * np.float64(right) + np.float64(addend))

    def half_to_float(bits: Any) -> Any:
        return np.float32(np.uint16(bits).view(np.float16))

    def float_to_half(value: Any) -> Any:
        return np.float16(value).view(np.uint16)

    def bits_to_float(bits: Any) -> Any:
        return np.uint32(int(bits) & 0xFFFFFFFF).view(np.float32)

else:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    from edgespec.backends.native.kernels.codegen.emit import F16, F32, F64, I8, I16, I32, I64, VOID

    def _loader(kind: Any, source: Any = None, widen: str = "") -> Any:
        """An intrinsic that reads one value of an LLVM type at an address."""

        @intrinsic
        def load(typing: Any, address: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                value = builder.load(builder.inttoptr(arguments[0], source.as_pointer()))
                return getattr(builder, widen)(value, I64) if widen else value

            return kind(types.intp), generate

        return load

    def _storer(kind: Any, source: Any = None) -> Any:
        """An intrinsic that writes one value of an LLVM type, or a wider integer cut to it."""

        @intrinsic
        def store(typing: Any, address: Any, value: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                value = arguments[1]
                value = value if value.type == source else builder.trunc(value, source)
                builder.store(value, builder.inttoptr(arguments[0], source.as_pointer()))
                return context.get_dummy_value()

            return types.void(types.intp, kind), generate

        return store

    load_short, store_short = _loader(types.uint16, I16), _storer(types.uint16, I16)
    load_float, store_float = _loader(types.float32, F32), _storer(types.float32, F32)
    # Widened: one integer type, one compiled variant.
    load_byte, load_int = _loader(types.int64, I8, "zext"), _loader(types.int64, I32, "sext")
    store_byte = _storer(types.int64, I8)
    load_long, store_long = _loader(types.int64, I64), _storer(types.int64, I64)
    load_double = _loader(types.float64, F64)

    @intrinsic
    def fma(typing: Any, left: Any, right: Any, addend: Any) -> Any:
        """left * right + addend in float32, rounded once."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(F32, [F32, F32, F32])
            return builder.call(_declare(builder.module, kind, "llvm.fma.f32"), arguments)

        return types.float32(types.float32, types.float32, types.float32), generate

    @intrinsic
    def half_to_float(typing: Any, bits: Any) -> Any:
        """The float32 with the value of 16 bits of half precision."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.fpext(builder.bitcast(arguments[0], F16), F32)

        return types.float32(types.uint16), generate

    @intrinsic
    def float_to_half(typing: Any, value: Any) -> Any:
        """The 16 bits of the nearest half-precision number."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(builder.fptrunc(arguments[0], F16), I16)

        return types.uint16(types.float32), generate

    @intrinsic
    def bits_to_float(typing: Any, bits: Any) -> Any:
        """The float32 with these 32 bits."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], F32)

        return types.float32(types.int32), generate


def _declare(module: Any, kind: Any, name: str) -> Any:
    return module.globals.get(name) or ir.Function(module, kind, name)


def _caller(num_arguments: int) -> Any:
    """An intrinsic that calls the function at an address, which takes so many 64-bit integers, with
    the integers of a tuple; those that it lacks at its end are 0.
    """

    @intrinsic
    def call(typing: Any, address: Any, values: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(VOID, [I64] * num_arguments)
            given = cgutils.unpack_tuple(builder, arguments[1], len(values))
            lacking = [I64(0)] * (num_arguments - len(values))
            builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [*given, *lacking])
            return context.get_dummy_value()

        return types.void(types.intp, types.UniTuple(types.intp, len(values))), generate

    return call


def _plain_caller(num_arguments: int) -> Any:
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * num_arguments)

    def call(address: int, values: tuple[int, ...]) -> None:
        function(int(address))(*map(int, values), *[0] * (num_arguments - len(values)))

    return call


_make = _caller if SOURCE == "numba" else _plain_caller
call_tile = _make(tile.NUM_ARGUMENTS)
"""Calls a tile function; the integers are those of `matmul/tile.py`."""
call_row = _make(table.NUM_ROW_ARGUMENTS)
"""Calls a row operation; the integers are those of `row_ops.py`."""
