"""Tables of addresses for kernels: one integer says where everything is.

Numba takes a tenth of a microsecond or two for each array that Python hands to a kernel. A kernel
that takes the address of a table of int64 words finds its arrays there, each described by a few
words (its address, then its lengths), and the addresses of other kernels. All kernels that are
called by address have one signature, an `Entry`'s; the first number is a table's address.

With the JIT off (NUMBA_DISABLE_JIT=1) plain Python stands in, so that kernels can be stepped
through; with precompiled kernels nobody calls it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import EdgeSpecError
from edgespec.system import precompiled
from edgespec.system.entries import ENTRIES, name_of
from edgespec.system.jit import SOURCE

WORD_BYTES = 8
Entry = Callable[[int, int, int], int]
"""What has an address: takes a table's address and two numbers."""
_ENTRIES: dict[int, Callable[..., Any]] = {}
"""With the JIT off: who is at an address."""


class AddressTable:
    """Words that kernels read and write; who binds an array to it must keep the array."""

    def __init__(self, num_words: int) -> None:
        self.words: NDArray[np.int64] = np.zeros(num_words, np.int64)
        self.address = int(self.words.ctypes.data)

    def bind(self, word: int, array: NDArray[Any]) -> None:
        """The words from this one on say where a contiguous array is: its address, its lengths."""
        self.words[word : word + 1 + array.ndim] = (array.ctypes.data, *array.shape)


def address_of(entry: Entry) -> int:
    """Where the machine code of an `@entry` is; the code stays."""
    return address_named(name_of(entry))


@cache
def address_named(name: str) -> int:
    """The same by its name in `entries.ENTRIES`."""
    if name not in ENTRIES:
        raise EdgeSpecError(f"{name} is called by address and is no @entry")
    entry = ENTRIES[name]
    if SOURCE == "library":
        return precompiled.library().address(name)
    if SOURCE == "python":
        function = entry.make()
        _ENTRIES[id(function)] = function
        return id(function)
    from edgespec.system.numba_compiler import callback_address

    return callback_address(entry)


if SOURCE != "numba":

    def word(table: int, index: int) -> int:
        """A word of the table at this address."""
        return ctypes.c_int64.from_address(int(table) + WORD_BYTES * int(index)).value

    def set_word(table: int, index: int, value: int) -> None:
        """Write a word of the table at this address."""
        ctypes.c_int64.from_address(int(table) + WORD_BYTES * int(index)).value = int(value)

    def call(address: int, table: int, one: int, other: int) -> int:
        """Call the entry at this address."""
        result: int = _ENTRIES[int(address)](table, one, other)
        return result

    def _array_at(kind: Any, address: int, shape: tuple[int, ...]) -> NDArray[Any]:
        num_bytes = math.prod(shape) * np.dtype(kind).itemsize
        if not num_bytes:
            return np.zeros(shape, kind)
        raw = ctypes.c_char * num_bytes
        return np.frombuffer(raw.from_address(int(address)), kind).reshape(shape)

    def viewer(kind: Any, num_axes: int) -> Any:
        def view(table: int, index: int) -> NDArray[Any]:
            address, *shape = (word(table, index + place) for place in range(num_axes + 1))
            return _array_at(kind, address, tuple(shape))

        return view

    def line_viewer(kind: Any) -> Any:
        return lambda address, length: _array_at(kind, address, (int(length),))

else:
    from edgespec.system import numba_addresses

    word, set_word, call = numba_addresses.word, numba_addresses.set_word, numba_addresses.call
    viewer, line_viewer = numba_addresses.viewer, numba_addresses.line_viewer


int32_rows, float64_rows, int64_rows = (viewer(k, 2) for k in (np.int32, np.float64, np.int64))
"""The array of two axes that the words from an index of a table on describe."""
float32_rows = viewer(np.float32, 2)
int32_line, float64_line, int64_line = (viewer(k, 1) for k in (np.int32, np.float64, np.int64))
int16_line, float32_line, uint8_line = (viewer(k, 1) for k in (np.int16, np.float32, np.uint8))
"""The array of one axis."""
float64_block = viewer(np.float64, 4)
"""The array of four axes."""
int32s_at, int64s_at = line_viewer(np.int32), line_viewer(np.int64)
"""So many int32, or int64, at an address."""
