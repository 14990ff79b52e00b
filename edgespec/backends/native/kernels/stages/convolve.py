"""What goes into a recurrent layer's state: the causal convolution over a node and its ancestors,
norms of queries and keys, decays and time steps.

Rows that a convolution looks back to are those of the pass, then what is kept of nodes that are
committed and not yet in the state, then the state's tail. The new tail is written beside the old.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import (
    call_row,
    load_float,
    store_float,
    store_long,
)
from edgespec.backends.native.kernels.recurrent import words as w
from edgespec.backends.native.kernels.stages.norm import ONE_BITS
from edgespec.backends.native.kernels.stages.rows import quantise_row
from edgespec.system.addresses import int64s_at, word
from edgespec.system.jit import entry, inner_kernel

LAYER = t.ARGUMENTS
"""Operand of all stages of a recurrent layer: the address of its words (`recurrent/words.py`)."""


@inner_kernel
def node_word(now, row, column):
    """One word of a node of the pass."""
    return word(word(now, np.int64(w.ROWS)), row * w.ROW_WORDS + column)


@inner_kernel
def part_place(now, part):
    """Where the words of a sequence are."""
    return word(now, np.int64(w.PARTS)) + 8 * w.PART_WORDS * part


@inner_kernel
def copy(target, source, count):
    """target[count] = source[count], f32 at two addresses."""
    for i in range(count):
        store_float(target + 4 * i, load_float(source + 4 * i))


@inner_kernel
def _projected(own, row):
    return word(own, w.PROJECTED) + row * word(own, w.PROJECTED_STRIDE)


@inner_kernel
def _before(own, part, back):
    """Inputs of the convolution `back` positions before the first that is not committed."""
    pending = word(part, w.NUM_PENDING)
    if back <= pending:
        return word(word(part, w.PENDING), pending - back) + word(own, w.KEPT_RAW_AT)
    place = word(own, w.WIDTH) - 1 - (back - pending)
    tail = word(own, w.TAIL_AT) + word(part, w.PARITY) * word(own, w.TAIL_BYTES)
    return word(part, w.STATE) + tail + place * 4 * word(own, w.CHANNELS)


@inner_kernel
def _inputs(own, now, row, back):
    """Inputs of the convolution `back` positions before a node's own."""
    part = part_place(now, node_word(now, row, np.int64(w.PART)))
    while back > 0:
        parent = node_word(now, row, np.int64(w.PARENT))
        if parent < 0:
            return _before(own, part, back)
        row, back = parent, back - 1
    return _projected(own, row) + word(own, w.RAW_AT)


@inner_kernel
def _convolve(c, own, thread, row, block):
    """A block of a node's channels."""
    now, width = word(own, w.PASS), word(own, w.WIDTH)
    first = block * word(own, w.BLOCK)
    count = min(word(own, w.BLOCK), word(own, w.CHANNELS) - first)
    addresses = word(own, w.WORK) + thread * word(own, w.WORK_THREAD)
    for i in range(width):
        store_long(addresses + 8 * i, _inputs(own, now, row, width - 1 - i))
    bias = word(own, w.CONV_BIAS)
    if bias != 0:
        bias += 4 * first
    taps, stride = word(own, w.TAPS) + 4 * first, word(own, w.TAP_STRIDE)
    target = word(own, w.MIXED) + row * word(own, w.MIXED_STRIDE) + 4 * first
    convolve = word(own, w.CONVOLVE)
    call_row(convolve, (addresses, 4 * first, taps, stride, bias, target, count >> 4))
    kept = node_word(now, row, np.int64(w.KEPT))
    if kept != 0:
        source = _projected(own, row) + word(own, w.RAW_AT) + 4 * first
        copy(kept + word(own, w.KEPT_RAW_AT) + 4 * first, source, count)
    queries = word(own, w.NORMED_QUERIES)
    if block < queries + word(own, w.NORMED_KEYS):
        scale = word(own, w.SCALE_BITS) if block < queries else np.int64(ONE_BITS)
        call_row(
            word(own, w.L2_NORM), (target, target, count >> 4, word(own, w.EPSILON_BITS), scale)
        )
    if word(own, w.HEADS) == 0:
        gate = _projected(own, row) + word(own, w.GATE_AT) + 4 * first
        call_row(word(own, w.MULTIPLY), (target, gate, target, count >> 4))
        quantise_row(c, np.int64(t.ATTENDED), row, first, count)


@inner_kernel
def _gates(own, row):
    """A node's decays, and its betas or time steps."""
    place = row * word(own, w.GATES_STRIDE)
    decays, betas = word(own, w.DECAYS) + place, word(own, w.BETAS) + place
    count, projected = (word(own, w.HEADS) + 15) >> 4, _projected(own, row)
    times = projected + word(own, w.TIMES_AT)
    bias, rates = word(own, w.TIME_BIAS), word(own, w.RATES)
    call_row(word(own, w.TIME_STEPS), (times, bias, rates, decays, betas, count))
    if word(own, w.BETAS_AT) >= 0:
        call_row(word(own, w.SIGMOID), (projected + word(own, w.BETAS_AT), betas, count))
    kept = node_word(word(own, w.PASS), row, np.int64(w.KEPT))
    if kept != 0:
        copy(kept + word(own, w.KEPT_DECAYS_AT), decays, 16 * count)


@inner_kernel
def _keep_tail(own, part, block):
    """A block of the inputs that the sequence's next nodes will look back to, if these change."""
    chain = word(part, w.COUNT) * word(part, w.IS_CHAIN)
    if chain + word(part, w.NUM_PENDING) == 0:
        return
    first = block * word(own, w.BLOCK)
    count = min(word(own, w.BLOCK), word(own, w.CHANNELS) - first)
    tail = (1 - word(part, w.PARITY)) * word(own, w.TAIL_BYTES) + word(own, w.TAIL_AT)
    for i in range(word(own, w.WIDTH) - 1):
        back = word(own, w.WIDTH) - 1 - i
        if back <= chain:
            last = word(part, w.FIRST) + chain - back
            source = _projected(own, last) + word(own, w.RAW_AT)
        else:
            source = _before(own, part, back - chain)
        target = word(part, w.STATE) + tail + i * 4 * word(own, w.CHANNELS)
        copy(target + 4 * first, source + 4 * first, count)


@entry
def convolve(table, stage, thread):
    """This thread's share of nodes' channels and gates, and of sequences' new tails."""
    c, own = int64s_at(table, t.NUM_ENTRIES), word(stage, LAYER)
    now, threads = word(own, w.PASS), c[t.THREADS]
    blocks = (word(own, w.CHANNELS) + word(own, w.BLOCK) - 1) // word(own, w.BLOCK)
    units = blocks + (1 if word(own, w.HEADS) > 0 else 0)
    for unit in range(thread, c[t.NUM_ROWS] * units, threads):
        row, block = unit // units, unit % units
        if block < blocks:
            _convolve(c, own, thread, row, block)
        else:
            _gates(own, row)
    for unit in range(thread, word(now, w.NUM_PARTS) * blocks, threads):
        _keep_tail(own, part_place(now, unit // blocks), unit % blocks)
    return 0


@entry
def multiply_inputs(table, stage, thread):
    """This thread's rows of the inputs of a short convolution: two projections' products."""
    c, own = int64s_at(table, t.NUM_ENTRIES), word(stage, LAYER)
    for row in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        place = _projected(own, row)
        raw, factor = place + word(own, w.RAW_AT), place + word(own, w.FACTOR_AT)
        call_row(word(own, w.MULTIPLY), (raw, factor, raw, word(own, w.CHANNELS) >> 4))
    return 0
