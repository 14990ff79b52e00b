"""A pass over n nodes, in one compiled call: the walk through the stages of a program.

All threads of a team walk the same stages, each doing its share of every one, and meet between
them (see `work_sharing.py`). Work that needs no other thread's results is done where its input was
made: heads are rotated by the thread that computed them, and gate and up meet while both are in the
cache. Stages are called by address (`stages/`), so a model compiles those it has.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import load_long, store_long
from edgespec.backends.native.kernels.work_sharing import (
    barrier,
    next_pass,
    share_out,
    start_pass,
)
from edgespec.system.addresses import call, word
from edgespec.system.jit import inner_kernel, kernel


@inner_kernel
def _walk(c, first, last, thread, threads):
    """This thread's share of stages `first` .. `last` - 1."""
    for number in range(first, last):
        stage = c[t.PROGRAM] + number * t.STAGE_BYTES
        call(word(stage, t.ENTRY), word(stage, t.TABLE), stage, thread)
        barrier(c, thread, threads)


@inner_kernel
def _pass(c, thread, threads):
    """This thread's share of the job in the table, which is read before the last barrier: past it,
    thread 0 may be at the next job.
    """
    first, last = c[t.FIRST_STAGE], c[t.LAST_STAGE]
    head_first, head_last = c[t.HEAD_FIRST], c[t.HEAD_LAST]
    if last > first:
        _walk(c, np.int64(0), c[t.NUM_PRELUDE], thread, threads)
    _walk(c, first, last, thread, threads)
    _walk(c, head_first, head_last, thread, threads)


@kernel("int64[:]", "int64", "int64", "int64", "int64", "int64", "int64", "int64")
def run(c, first, last, head_first, head_last, num_rows, first_row, threads):
    """Run stages `first` .. `last` - 1 of the layers over the residual stream [n, dim], in place;
    keys and values go to the arenas. Then those of the head, over rows of the stream from
    `first_row` on: logits [rows, vocab].

    Called by thread 0; the team's other threads are in `serve`.
    """
    c[t.FIRST_STAGE], c[t.LAST_STAGE] = first, last
    c[t.HEAD_FIRST], c[t.HEAD_LAST] = head_first, head_last
    c[t.NUM_ROWS], c[t.FIRST_ROW], c[t.THREADS] = num_rows, first_row, threads
    for number in range(c[t.NUM_OTHERS]):
        other = load_long(c[t.OTHERS] + 8 * number)
        for entry in range(t.NUM_ROWS, t.RELEASE + 1):
            store_long(other + 8 * entry, c[entry])
    share_out(c, threads)
    start_pass(c, threads)
    _pass(c, np.int64(0), threads)


@kernel("int64[:]", "int64")
def serve(c, thread):
    """Take part in every pass that has room for this thread, until told to leave."""
    seen = np.int64(0)
    while True:
        seen = next_pass(c, thread, seen)
        threads = seen & 255
        if threads == 0:
            return
        if thread < threads:
            _pass(c, thread, threads)
