"""The threads that compute a model's passes (see `backends/native/kernels/work_sharing.py` for how
they work together).
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import forward, table, work_sharing
from edgespec.backends.native.kernels.codegen import atomics
from edgespec.errors import OptionError
from edgespec.system.power import SPINS
from edgespec.system.precompiled import chosen
from edgespec.system.threads import start_thread

CROWDED_SPINS = 100
"""Looks at a word before sleeping where there are more threads than processors to run them."""

ctypes.pythonapi.PyThread_allocate_lock.restype = ctypes.c_void_p
ctypes.pythonapi.PyThread_allocate_lock.argtypes = []
ctypes.pythonapi.PyThread_acquire_lock.argtypes = [ctypes.c_void_p, ctypes.c_int]
ctypes.pythonapi.PyThread_release_lock.argtypes = [ctypes.c_void_p]
ctypes.pythonapi.PyThread_free_lock.argtypes = [ctypes.c_void_p]


class Team:
    """The calling thread and `size - 1` others, which sleep until there is a pass to compute."""

    def __init__(self, c: NDArray[np.int64], size: int, spins: int = SPINS) -> None:
        self._spins = spins
        self.size = 1 if chosen().source == "python" else min(size, work_sharing.MAX_THREADS)
        self.table = c
        self._end = self._gather()

    def run(
        self, stages: tuple[int, int, int, int], num_rows: int, first_row: int, threads: int
    ) -> None:
        """One pass on the first `threads` of the team; see `forward.run`."""
        self.gather()
        forward.run(self.table, *stages, num_rows, first_row, min(threads, self.size))

    def gather(self) -> None:
        """Start the other threads anew in a process that was forked: they do not survive that."""
        if self._process != os.getpid():
            self._end.detach()
            self._end = self._gather()

    def close(self) -> None:
        """End the other threads."""
        self._end()

    def _gather(self) -> weakref.finalize[..., Team]:
        """Start the other threads; returns what ends them, at the latest with the team itself."""
        words = np.zeros(
            (work_sharing.MEMBERS + (self.size + 1) * work_sharing.LINE) // 8, np.int64
        )
        words = words[-words.ctypes.data % work_sharing.LINE // 8 :]  # on a cache line
        locks = [held_lock() for _ in range(self.size)]
        words[work_sharing.SPINS // 8] = (
            self._spins if self.size <= (os.cpu_count() or 1) else CROWDED_SPINS
        )
        words[work_sharing.SIZE // 8] = self.size
        for thread, lock in enumerate(locks):
            mine = (work_sharing.MEMBERS + thread * work_sharing.LINE) // 8
            words[mine + work_sharing.LOCK // 8] = lock
            words[mine + work_sharing.SHARE // 8] = (1 << work_sharing.ONE) // self.size
        self.table[table.TEAM] = words.ctypes.data
        self.table[table.ACQUIRE], self.table[table.RELEASE] = atomics.ACQUIRE, atomics.RELEASE
        cores = _cores(self.size)
        others = [
            threading.Thread(
                target=_serve,
                args=(self.table, thread, cores[thread]),
                name=f"edgespec-{thread}",
                daemon=True,  # an interpreter that ends does not wait for them
            )
            for thread in range(1, self.size)
        ]
        end = weakref.finalize(self, _dismiss, self.table, words, locks, others)
        try:
            for other in others:
                start_thread(other)
        except BaseException:
            end()  # those that have started read what is here
            raise
        self._process = os.getpid()
        return end


class GuestTeam:
    """The threads of another model's team, for a program of its own between that one's passes.

    `tables` are the guest's, the base first, with its program entered in that.
    """

    def __init__(self, host: Team, tables: Sequence[NDArray[np.int64]]) -> None:
        self.size = host.size
        self._host = host
        self._addresses = np.array([c.ctypes.data for c in tables], np.int64)
        self._words = tables[0][table.PROGRAM : table.NUM_OTHERS + 1].copy()
        """What the host's table is to hold meanwhile."""
        self._words[table.OTHERS - table.PROGRAM] = self._addresses.ctypes.data
        self._words[table.NUM_OTHERS - table.PROGRAM] = len(tables)

    def run(
        self, stages: tuple[int, int, int, int], num_rows: int, first_row: int, threads: int
    ) -> None:
        """`Team.run`, of the guest's program."""
        lent = self._host.table[table.PROGRAM : table.NUM_OTHERS + 1]
        kept = lent.copy()
        lent[:] = self._words
        try:
            self._host.run(stages, num_rows, first_row, threads)
        finally:
            lent[:] = kept

    def gather(self) -> None:
        """`Team.gather`."""
        self._host.gather()

    def close(self) -> None:
        """The threads are the host's."""


def _cores(size: int) -> list[int | None]:
    """Where to pin each thread: nowhere, or with EDGESPEC_PIN=1 one processor each, in turn.

    The first is the caller's, which is not ours to pin.
    """
    if os.environ.get("EDGESPEC_PIN", "0") in ("", "0"):
        return [None] * size
    if not hasattr(os, "sched_setaffinity"):
        raise OptionError(
            "EDGESPEC_PIN asks for threads that stay on their processors, which this system does "
            "not offer; unset it"
        )
    allowed = sorted(os.sched_getaffinity(0))
    return [allowed[thread % len(allowed)] for thread in range(size)]


def _serve(c: NDArray[np.int64], thread: int, core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})  # of this thread alone
    forward.serve(c, thread)


def held_lock() -> int:
    lock: int | None = ctypes.pythonapi.PyThread_allocate_lock()
    if not lock:
        raise MemoryError("the system has no lock left for a thread")
    ctypes.pythonapi.PyThread_acquire_lock(lock, 1)
    return lock


def _dismiss(
    c: NDArray[np.int64], words: NDArray[np.int64], locks: list[int], others: list[threading.Thread]
) -> None:
    """Tell all threads to leave, wait for them (they read `words`), and free their locks."""
    work_sharing.dismiss(c, len(locks))
    for other in others:
        if other.ident is not None:
            other.join()
    for lock in locks:
        ctypes.pythonapi.PyThread_release_lock(lock)
        ctypes.pythonapi.PyThread_free_lock(lock)
    del words
