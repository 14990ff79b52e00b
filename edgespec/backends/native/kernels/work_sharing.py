"""How threads share a pass: who starts it, who computes which part, and how they wait.

A team's threads run the same code over the same table. Between two stages they meet at a barrier;
between two passes all but the caller wait for the next. Waiting is a short spin and then sleep, on
a lock of the interpreter's own (`PyThread_acquire_lock`: every system has it, and it needs no GIL),
so that a busy machine is not kept from the work that is waited for.

The units of a stage (tiles, heads) are split by what each thread was measured to do in earlier
passes, because cores are unequal: performance and efficiency cores, or one that other programs use
("A dynamic parallel method for performance optimization on hybrid CPUs"). The last eighth is left
to whoever is free. Which thread computes a unit never changes its result.

The words lie in int64 lines of 64 bytes, so that threads do not share cache lines by accident.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.atomics import (
    atomic_add,
    atomic_load,
    atomic_swap,
    call_lock,
    spin_pause,
)
from edgespec.backends.native.kernels.codegen.intrinsics import load_long, store_long
from edgespec.system.jit import inner_kernel, kernel

LINE = 64
PASS, BARRIER, ARRIVED, COUNTER, SPINS, MEMBERS = (LINE * i for i in range(6))
SIZE = SPINS + 8
"""Lines by what they hold: number of the pass times 256 plus its threads (0: leave), number of the
barrier, threads that reached it, units taken from the last eighth, spins before sleep and the
team's threads, then one line for each thread:
"""
ASLEEP, LOCK, SHARE, FROM, TO, DONE = (8 * i for i in range(6))
"""1 while it sleeps on its lock; its share, where its part of a stage starts and ends, in 2**-20;
and the bytes of weights it went through in this pass.
"""
ONE = 20
"""Binary places of shares."""
MAX_THREADS = 255


@inner_kernel
def _wait(c, thread, word, seen):
    """Until `word` is no longer `seen`; returns what it is now."""
    for _ in range(load_long(c[t.TEAM] + SPINS)):
        now = atomic_load(word)
        if now != seen:
            return now
        spin_pause()
    mine = c[t.TEAM] + MEMBERS + thread * LINE
    while True:
        atomic_swap(mine + ASLEEP, 1)
        now = atomic_load(word)
        if now != seen:
            if atomic_swap(mine + ASLEEP, 0) == 0:  # whoever woke us has released the lock
                call_lock(c[t.ACQUIRE], load_long(mine + LOCK), 1)
            return now
        call_lock(c[t.ACQUIRE], load_long(mine + LOCK), 1)


@inner_kernel
def _tell(c, thread, threads, word, value):
    """Set `word` and wake those of the first `threads` threads that sleep."""
    atomic_swap(word, value)
    for other in range(threads):
        theirs = c[t.TEAM] + MEMBERS + other * LINE
        if other != thread and atomic_swap(theirs + ASLEEP, 0) == 1:
            call_lock(c[t.RELEASE], load_long(theirs + LOCK), 0)


@inner_kernel
def start_pass(c, threads):
    """Called by thread 0: send the other threads into a pass."""
    word = c[t.TEAM] + PASS
    _tell(c, np.int64(0), threads, word, (load_long(word) >> 8) + 1 << 8 | threads)


@kernel("int64[:]", "int64")
def dismiss(c, size):
    """Tell all of a team's `size` threads to leave."""
    word = c[t.TEAM] + PASS
    _tell(c, np.int64(0), size, word, (load_long(word) >> 8) + 1 << 8)


@inner_kernel
def next_pass(c, thread, seen):
    """Wait for a pass after `seen`, the number this returned last (0 at first)."""
    return _wait(c, thread, c[t.TEAM] + PASS, seen)


@inner_kernel
def barrier(c, thread, threads):
    """Wait until all threads of the pass are here."""
    team = c[t.TEAM]
    seen = atomic_load(team + BARRIER)
    if atomic_add(team + ARRIVED, 1) < threads - 1:
        _wait(c, thread, team + BARRIER, seen)
        return
    store_long(team + ARRIVED, 0)
    store_long(team + COUNTER, 0)
    _tell(c, thread, threads, team + BARRIER, seen + 1)


@inner_kernel
def _edge(c, thread, word, count):
    """The unit at which a thread's part of `count` begins (FROM) or ends (TO), rounded: two threads
    that are nearly alike must not split four units into one and three.
    """
    share = load_long(c[t.TEAM] + MEMBERS + thread * LINE + word)
    return ((count - (count >> 3)) * share + (1 << ONE - 1)) >> ONE


@inner_kernel
def end_of_part(c, thread, count):
    """Where this thread's part of `count` units ends."""
    return _edge(c, thread, np.int64(TO), count)


@inner_kernel
def first_unit(c, thread, count, num_bytes):
    """The first unit for this thread; `count` or more when none is left.

    `num_bytes` is what a unit weighs against those of other stages.
    """
    begin = _edge(c, thread, np.int64(FROM), count)
    return next_unit(c, thread, begin - 1, count, num_bytes)


@inner_kernel
def next_unit(c, thread, unit, count, num_bytes):
    """The unit after `unit`: of this thread's part, then of what is left to all."""
    unit += 1
    if unit >= end_of_part(c, thread, count):
        unit = count - (count >> 3) + atomic_add(c[t.TEAM] + COUNTER, 1)
    if unit < count:
        done = c[t.TEAM] + MEMBERS + thread * LINE + DONE
        store_long(done, load_long(done) + num_bytes)
    return unit


@kernel("int64[:]", "int64")
def share_out(c, threads):
    """Before a pass: move the shares a sixteenth of the way to what was done in the last, and split
    the stages of this one among so many threads.
    """
    size, done, held = load_long(c[t.TEAM] + SIZE), 0, 0
    for thread in range(size):
        mine = c[t.TEAM] + MEMBERS + thread * LINE
        if load_long(mine + DONE) > 0:
            done += load_long(mine + DONE)
            held += load_long(mine + SHARE)
    for thread in range(size):
        mine = c[t.TEAM] + MEMBERS + thread * LINE
        if load_long(mine + DONE) > 0:
            share = load_long(mine + SHARE)
            target = np.int64(load_long(mine + DONE) / done * held)
            store_long(mine + SHARE, max(share + ((target - share) >> 4), 1))
            store_long(mine + DONE, 0)
    held, so_far = 0, 0
    for thread in range(threads):
        held += load_long(c[t.TEAM] + MEMBERS + thread * LINE + SHARE)
    for thread in range(threads):
        mine = c[t.TEAM] + MEMBERS + thread * LINE
        store_long(mine + FROM, (so_far << ONE) // held)
        so_far += load_long(mine + SHARE)
        store_long(mine + TO, (so_far << ONE) // held)
