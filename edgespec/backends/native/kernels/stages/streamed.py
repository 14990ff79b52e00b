"""Matrices that are read from disk while a pass goes on (`backends/native/streaming/`)."""

from __future__ import annotations

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.atomics import call_lock
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry

# The address of the addresses of locks, and how many these are.
LOCKS, COUNT = range(t.ARGUMENTS, t.ARGUMENTS + 2)


@entry
def take(table, stage, thread):
    """Wait until matrices are there; the other threads do so at the barrier."""
    if thread == 0:
        c = int64s_at(table, t.NUM_ENTRIES)
        for number in range(word(stage, COUNT)):
            call_lock(c[t.ACQUIRE], word(word(stage, LOCKS), number), 1)
    return 0


@entry
def give(table, stage, thread):
    """Give back the room of matrices."""
    if thread == 0:
        c = int64s_at(table, t.NUM_ENTRIES)
        for number in range(word(stage, COUNT)):
            call_lock(c[t.RELEASE], word(word(stage, LOCKS), number), 0)
    return 0
