"""What reads and writes tables of addresses (`addresses.py`) in functions that Numba compiles."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

I64 = ir.IntType(64)


@intrinsic
def word(typing: Any, table: Any, index: Any) -> Any:
    """A word of the table at this address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.load(builder.gep(base, [arguments[1]]))

    return types.intp(types.intp, types.intp), generate


@intrinsic
def set_word(typing: Any, table: Any, index: Any, value: Any) -> Any:
    """Write a word of the table at this address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = builder.inttoptr(arguments[0], I64.as_pointer())
        builder.store(arguments[2], builder.gep(base, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def call(typing: Any, address: Any, table: Any, one: Any, other: Any) -> Any:
    """Call the entry at this address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(I64, [I64] * 3)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.intp(*[types.intp] * 4), generate


def make_view(context: Any, builder: Any, kind: Any, address: Any, shape: Any) -> Any:
    """An array that owns nothing, of these lengths, at an address."""
    from numba.np import arrayobj  # 3 MiB that a start from the cache does without

    made = context.make_array(kind)(context, builder)
    item_bytes = context.get_constant(types.intp, kind.dtype.bitwidth // 8)
    strides = [item_bytes]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(length, strides[0]))
    arrayobj.populate_array(
        made,
        data=builder.inttoptr(address, made.data.type),
        shape=cgutils.pack_array(builder, shape, I64),
        strides=cgutils.pack_array(builder, strides, I64),
        itemsize=item_bytes,
        meminfo=None,
    )
    return made._getvalue()


def viewer(kind: Any, num_axes: int) -> Any:
    array = types.Array(numba.from_dtype(np.dtype(kind)), num_axes, "C")

    @intrinsic
    def view(typing: Any, table: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base = builder.inttoptr(arguments[0], I64.as_pointer())
            first = builder.gep(base, [arguments[1]])
            words = [
                builder.load(builder.gep(first, [I64(place)])) for place in range(num_axes + 1)
            ]
            return make_view(context, builder, array, words[0], words[1:])

        return array(types.intp, types.intp), generate

    return view


def line_viewer(kind: Any) -> Any:
    array = types.Array(numba.from_dtype(np.dtype(kind)), 1, "C")

    @intrinsic
    def view(typing: Any, address: Any, length: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return make_view(context, builder, array, arguments[0], [arguments[1]])

        return array(types.intp, types.intp), generate

    return view
