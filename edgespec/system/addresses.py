"""Tables of addresses for kernels: one integer says where everything is.

Numba takes a tenth of a microsecond or two for each array that Python hands to a kernel. A kernel
that takes the address of a table of int64 words finds its arrays there, each described by a few
words (its address, then its lengths), and the addresses of other kernels. All kernels that are
called by address have one signature, an `Entry`'s; the first number is a table's address.

With the JIT off (NUMBA_DISABLE_JIT=1) plain Python stands in, so that kernels can be stepped
through.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from edgespec.system.jit import callback

WORD_BYTES = 8
Entry = Callable[[int, int, int], int]
"""What has an address: takes a table's address and two numbers."""
_SIGNATURE = types.intp(types.intp, types.intp, types.intp)
_KEPT: list[Any] = []
_ENTRIES: dict[int, Entry] = {}
"""With the JIT off: who is at an address."""


class AddressTable:
    """Words that kernels read and write; who binds an array to it must keep the array."""

    def __init__(self, num_words: int) -> None:
        self.words: NDArray[np.int64] = np.zeros(num_words, np.int64)
        self.address = int(self.words.ctypes.data)

    def bind(self, word: int, array: NDArray[Any]) -> None:
        """The words from this one on say where a contiguous array is: its address, its lengths."""
        self.words[word : word + 1 + array.ndim] = (array.ctypes.data, *array.shape)


@cache
def address_of(entry: Entry) -> int:
    """Compile a function to be called by address; the code stays."""
    if config.DISABLE_JIT:
        _ENTRIES[id(entry)] = entry
        return id(entry)
    compiled = callback(entry, _SIGNATURE)
    _KEPT.append(compiled)  # Numba frees the code with the object
    place: int = compiled.address
    return place


if config.DISABLE_JIT:

    def word(table: int, index: int) -> int:
        """A word of the table at this address."""
        return ctypes.c_int64.from_address(int(table) + WORD_BYTES * int(index)).value

    def set_word(table: int, index: int, value: int) -> None:
        """Write a word of the table at this address."""
        ctypes.c_int64.from_address(int(table) + WORD_BYTES * int(index)).value = int(value)

    def call(address: int, table: int, one: int, other: int) -> int:
        """Call the entry at this address."""
        return _ENTRIES[int(address)](table, one, other)

    def _array_at(kind: Any, address: int, shape: tuple[int, ...]) -> NDArray[Any]:
        num_bytes = math.prod(shape) * np.dtype(kind).itemsize
        if not num_bytes:
            return np.zeros(shape, kind)
        raw = ctypes.c_char * num_bytes
        return np.frombuffer(raw.from_address(int(address)), kind).reshape(shape)

    def _viewer(kind: Any, num_axes: int) -> Any:
        def view(table: int, index: int) -> NDArray[Any]:
            address, *shape = (word(table, index + place) for place in range(num_axes + 1))
            return _array_at(kind, address, tuple(shape))

        return view

    def _line_viewer(kind: Any) -> Any:
        return lambda address, length: _array_at(kind, address, (int(length),))

else:
    _I64 = ir.IntType(64)

    @intrinsic
    def word(typing: Any, table: Any, index: Any) -> Any:
        """A word of the table at this address."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base = builder.inttoptr(arguments[0], _I64.as_pointer())
            return builder.load(builder.gep(base, [arguments[1]]))

        return types.intp(types.intp, types.intp), generate

    @intrinsic
    def set_word(typing: Any, table: Any, index: Any, value: Any) -> Any:
        """Write a word of the table at this address."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base = builder.inttoptr(arguments[0], _I64.as_pointer())
            builder.store(arguments[2], builder.gep(base, [arguments[1]]))
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), generate

    @intrinsic
    def call(typing: Any, address: Any, table: Any, one: Any, other: Any) -> Any:
        """Call the entry at this address."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(_I64, [_I64] * 3)
            return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

        return types.intp(*[types.intp] * 4), generate

    def _make_view(context: Any, builder: Any, kind: Any, address: Any, shape: Any) -> Any:
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
            shape=cgutils.pack_array(builder, shape, _I64),
            strides=cgutils.pack_array(builder, strides, _I64),
            itemsize=item_bytes,
            meminfo=None,
        )
        return made._getvalue()

    def _viewer(kind: Any, num_axes: int) -> Any:
        array = types.Array(numba.from_dtype(np.dtype(kind)), num_axes, "C")

        @intrinsic
        def view(typing: Any, table: Any, index: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                base = builder.inttoptr(arguments[0], _I64.as_pointer())
                first = builder.gep(base, [arguments[1]])
                words = [
                    builder.load(builder.gep(first, [_I64(place)])) for place in range(num_axes + 1)
                ]
                return _make_view(context, builder, array, words[0], words[1:])

            return array(types.intp, types.intp), generate

        return view

    def _line_viewer(kind: Any) -> Any:
        array = types.Array(numba.from_dtype(np.dtype(kind)), 1, "C")

        @intrinsic
        def view(typing: Any, address: Any, length: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                return _make_view(context, builder, array, arguments[0], [arguments[1]])

            return array(types.intp, types.intp), generate

        return view


int32_rows, float64_rows, int64_rows = (_viewer(k, 2) for k in (np.int32, np.float64, np.int64))
"""The array of two axes that the words from an index of a table on describe."""
float32_rows = _viewer(np.float32, 2)
int32_line, float64_line, int64_line = (_viewer(k, 1) for k in (np.int32, np.float64, np.int64))
int16_line, float32_line, uint8_line = (_viewer(k, 1) for k in (np.int16, np.float32, np.uint8))
"""The array of one axis."""
float64_block = _viewer(np.float64, 4)
"""The array of four axes."""
int32s_at, int64s_at = _line_viewer(np.int32), _line_viewer(np.int64)
"""So many int32, or int64, at an address."""
