"""States of heads: steps of committed nodes are taken, and the pass' nodes read what they see.

A thread takes a head of a sequence through the whole walk (`recurrent/walk.py`), so its state stays
in the cache. States of nodes are never written back: what nodes would do is kept instead, and taken
in the next pass, once it is known which of them are committed.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import call_row, store_long
from edgespec.backends.native.kernels.recurrent import steps as s
from edgespec.backends.native.kernels.recurrent import words as w
from edgespec.backends.native.kernels.stages.convolve import LAYER, copy, node_word, part_place
from edgespec.backends.native.kernels.stages.rows import quantise_row
from edgespec.backends.native.kernels.work_sharing import first_unit, next_unit
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry, inner_kernel


@inner_kernel
def _key_head(own, head):
    return head // word(own, w.KEY_RUN) % word(own, w.KEY_HEADS)


@inner_kernel
def _kept_step(own, kept, head, step):
    """The words of a step that is kept: enough to take it."""
    keys = kept + word(own, w.KEPT_KEYS_AT)
    deltas = kept + word(own, w.KEPT_DELTAS_AT)
    decays = kept + word(own, w.KEPT_DECAYS_AT)
    store_long(step + 8 * s.KEY, keys + 4 * _key_head(own, head) * word(own, w.KEY_DIM))
    store_long(step + 8 * s.DELTA, deltas + 4 * head * word(own, w.VALUE_DIM))
    store_long(step + 8 * s.DECAY, decays + 4 * head)


@inner_kernel
def _row_step(c, own, row, head, step):
    """The words of a node's step; its delta goes where it is kept, or in place of its value."""
    mixed = word(own, w.MIXED) + row * word(own, w.MIXED_STRIDE)
    key = 4 * _key_head(own, head) * word(own, w.KEY_DIM)
    value = 4 * head * word(own, w.VALUE_DIM)
    gate = row * word(own, w.GATES_STRIDE) + 4 * head
    skips, kept = word(own, w.SKIPS), node_word(word(own, w.PASS), row, np.int64(w.KEPT))
    values = mixed + word(own, w.VALUES_AT) + value
    delta = values if kept == 0 else kept + word(own, w.KEPT_DELTAS_AT) + value
    output = c[t.ATTENDED + t.FLOATS] + row * c[t.ATTENDED + t.FLOATS_STRIDE] + value
    store_long(step + 8 * s.KEY, mixed + word(own, w.KEYS_AT) + key)
    store_long(step + 8 * s.DELTA, delta)
    store_long(step + 8 * s.DECAY, word(own, w.DECAYS) + gate)
    store_long(step + 8 * s.QUERY, mixed + word(own, w.QUERIES_AT) + key)
    store_long(step + 8 * s.VALUE, values)
    store_long(step + 8 * s.BETA, word(own, w.BETAS) + gate)
    store_long(step + 8 * s.SKIP, 0 if skips == 0 else skips + 4 * head)
    store_long(step + 8 * s.OUTPUT, output)


@inner_kernel
def _keep_keys(own, part, head):
    """Keep a key head's keys of all nodes, where this head is the first that has them."""
    key_head = _key_head(own, head)
    if head != key_head * word(own, w.KEY_RUN):
        return
    place, width = 4 * key_head * word(own, w.KEY_DIM), word(own, w.KEY_DIM)
    first = word(part, w.FIRST)
    for row in range(first, first + word(part, w.COUNT)):
        kept = node_word(word(own, w.PASS), row, np.int64(w.KEPT))
        if kept != 0:
            source = word(own, w.MIXED) + row * word(own, w.MIXED_STRIDE) + word(own, w.KEYS_AT)
            copy(kept + word(own, w.KEPT_KEYS_AT) + place, source + place, width)


@inner_kernel
def _walk(c, own, part, head, thread):
    """One head of one sequence, through all instructions."""
    work = word(own, w.WORK) + thread * word(own, w.WORK_THREAD)
    rows, columns = word(own, w.KEY_DIM), word(own, w.VALUE_DIM)
    size = 4 * rows * columns
    state = word(part, w.STATE) + word(own, w.STATES_AT) + head * size
    buffers = work + word(own, w.BUFFERS_AT)
    pending = word(part, w.NUM_PENDING)
    for index in range(pending):
        kept = word(word(part, w.PENDING), index)
        _kept_step(own, kept, head, work + index * s.STEP_BYTES)
    read, applied = work + pending * s.STEP_BYTES, work + (pending + 1) * s.STEP_BYTES
    instructions = word(word(own, w.PASS), w.INSTRUCTIONS)
    first = word(part, w.FIRST_INSTRUCTION)
    for index in range(first, first + word(part, w.NUM_INSTRUCTIONS)):
        row = instructions + 8 * w.INSTRUCTION_WORDS * index
        step, reader = word(row, w.APPLIED), word(row, w.READER)
        source, target = word(row, w.SOURCE), word(row, w.TARGET)
        source = state if source == w.COMMITTED else buffers + source * size
        target = state if target == w.COMMITTED else buffers + target * size
        steps, count, function = work, pending, word(own, w.ADVANCE)
        if step >= 0:
            _row_step(c, own, step, head, applied)
            steps, count = applied, np.int64(1)
        if reader == w.NOTHING:
            function = word(own, w.UPDATE)
        else:
            _row_step(c, own, reader, head, read)
            if step == w.NOTHING:
                function = word(own, w.READ)
        call_row(function, (source, target, rows, columns >> 4, steps, count, read))


@entry
def states(table, stage, thread):
    """This thread's heads of all sequences."""
    c, own = int64s_at(table, t.NUM_ENTRIES), word(stage, LAYER)
    now, heads = word(own, w.PASS), word(own, w.HEADS)
    count = word(now, w.NUM_PARTS) * heads
    num_bytes = 4 * word(own, w.KEY_DIM) * word(own, w.VALUE_DIM)
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        part, head = part_place(now, unit // heads), unit % heads
        _keep_keys(own, part, head)
        _walk(c, own, part, head, thread)
        unit = next_unit(c, thread, unit, count, num_bytes)
    return 0


@entry
def finish(table, stage, thread):
    """This thread's groups of ATTENDED: normed, gated and quantised."""
    c, own = int64s_at(table, t.NUM_ENTRIES), word(stage, LAYER)
    groups, width = word(own, w.GROUPS), word(own, w.GROUP_WIDTH)
    at_once = 1 if width % 32 == 0 else groups  # blocks that are quantised are whole
    units = groups // at_once
    for unit in range(thread, c[t.NUM_ROWS] * units, c[t.THREADS]):
        row, first = unit // units, unit % units * at_once
        gates = word(own, w.PROJECTED) + row * word(own, w.PROJECTED_STRIDE) + word(own, w.GATE_AT)
        place = c[t.ATTENDED + t.FLOATS] + row * c[t.ATTENDED + t.FLOATS_STRIDE]
        for group in range(first, first + at_once):
            values, at = place + 4 * group * width, 4 * group * width
            gain = word(own, w.GAIN) + group * word(own, w.GAIN_STRIDE)
            epsilon = word(own, w.EPSILON_BITS)
            call_row(
                word(own, w.GATED_NORM), (values, gain, gates + at, values, width >> 4, epsilon)
            )
        quantise_row(c, np.int64(t.ATTENDED), row, first * width, at_once * width)
    return 0
