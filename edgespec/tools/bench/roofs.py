"""How fast this machine reads, copies and multiplies, with as many threads as the model uses."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.codegen.machine_code import compile_function
from edgespec.tools.bench import loops
from edgespec.tools.bench.curve import turn

MOST_BYTES = 1 << 30
"""Of the buffer that is read: beyond this no processor's cache holds a useful part of it."""
SHORTEST_S = 0.01
"""Of one measurement; a thread takes some 0.0001 s to start."""


class Team:
    """Threads that start together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size)

    def seconds(self, work: Callable[[int], object]) -> float:
        """From the first start to the last end of `work(0)`, `work(1)` ... on a thread each."""
        barrier = threading.Barrier(self.size)

        def run(index: int) -> tuple[float, float]:
            barrier.wait()
            start = time.perf_counter()
            work(index)
            return start, time.perf_counter()

        starts, ends = zip(*self._pool.map(run, range(self.size)), strict=True)
        return float(max(ends) - min(starts))

    def close(self) -> None:
        self._pool.shutdown()


class Roofs:
    """The three limits, each measured anew whenever it is asked for; a context manager.

    `num_bytes` is what a forward pass reads: a buffer of that size (at most 1 GiB, and a quarter of
    `free_bytes`) is read and copied, so that it profits from caches as much as the model does.
    """

    def __init__(
        self, num_bytes: int, free_bytes: int, threads: int, multiply: loops.Multiply
    ) -> None:
        self._team = Team(threads)
        share = min(num_bytes, MOST_BYTES, free_bytes // 4) // threads
        self._share = max(share // (2 * loops.READ_STEP), 1) * 2 * loops.READ_STEP
        self._buffer = _aligned(self._share * threads)
        self._spare = _aligned(2 * loops.OPERAND_BYTES * threads)
        self._read = _function(4, *loops.emit_read())
        self._multiply = _function(3, *loops.emit_multiply(multiply))
        self._per_step = multiply.per_call * loops.CHAINS * loops.UNROLL
        self._repeats = {"read": 1, "copy": 1, "multiply": 1000}

    @property
    def buffer_bytes(self) -> int:
        """Bytes that are read, or copied from one half to the other."""
        return len(self._buffer)

    def read(self) -> list[float]:
        """Bytes per second read in one direction by all threads, each its own share."""
        steps = self._share // loops.READ_STEP

        def work(index: int, repeats: int) -> None:
            self._read(self._place(index), steps, repeats, self._spare_place(index))

        return self._rates("read", self.buffer_bytes, work)

    def copy(self) -> list[float]:
        """Bytes per second read and written together by the C library's own copying."""
        half = self._share // 2

        def work(index: int, repeats: int) -> None:
            for _ in range(repeats):
                ctypes.memmove(self._place(index) + half, self._place(index), half)

        return self._rates("copy", self.buffer_bytes, work)

    def multiply(self) -> list[float]:
        """Multiplications per second out of registers."""

        def work(index: int, repeats: int) -> None:
            operands = self._spare_place(index)
            self._multiply(operands, operands + loops.OPERAND_BYTES, repeats)

        return self._rates("multiply", self._team.size * self._per_step, work)

    def _rates(self, name: str, amount: int, work: Callable[..., object]) -> list[float]:
        """Amounts per second: one turn, of as many repeats as take long enough to be timed."""
        while True:
            run = partial(self._team.seconds, partial(work, repeats=self._repeats[name]))
            if run() >= SHORTEST_S:
                return [amount * self._repeats[name] / seconds for seconds in turn(run)]
            self._repeats[name] *= 2

    def _place(self, index: int) -> int:
        return int(self._buffer.ctypes.data) + index * self._share

    def _spare_place(self, index: int) -> int:
        return int(self._spare.ctypes.data) + index * 2 * loops.OPERAND_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._team.close()


def _function(num_arguments: int, text: str, name: str) -> Any:
    """A compiled function that other threads run beside: ctypes gives up Python's lock."""
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * num_arguments)
    return kind(compile_function(text, name, isa.processor(isa.chosen())))


def _aligned(num_bytes: int) -> NDArray[np.uint8]:
    """Bytes that start on a cache line and are all there: pages never written take no memory."""
    raw = np.ones(num_bytes + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + num_bytes]
