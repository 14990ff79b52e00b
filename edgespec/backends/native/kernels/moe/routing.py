"""Which experts a row goes to, with what weights; then all rows of a pass, grouped by expert.

A row's choice is a function of its own logits: experts are in order of their scores, of equal ones
the lower first, and that is also the order in which their outputs are added. Grouping keeps rows
of an expert in their order.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels.codegen.atomics import atomic_add
from edgespec.backends.native.kernels.codegen.intrinsics import (
    bits_to_float,
    call_row,
    load_float,
    load_long,
    store_float,
    store_long,
)
from edgespec.backends.native.kernels.moe import words as w
from edgespec.system.addresses import word
from edgespec.system.jit import inner_kernel

_ONE = 0x3F800000
"""The bits of 1.0."""
_LEAST_SUM = np.float32(6.103515625e-5)
"""Weights are divided by no less than the smallest normal f16, as llama.cpp does."""
_NOTHING = np.float32(-np.inf)


@inner_kernel
def choose(scores, count, wanted, chosen):
    """The places of the largest of `count` f32 scores at an address, largest first: int64 [wanted]
    at `chosen`. All are places, and no two the same, whatever the scores are.
    """
    for place in range(count):
        value, rank = load_float(scores + 4 * place), min(place, wanted)
        while rank > 0 and value > load_float(scores + 4 * load_long(chosen + 8 * rank - 8)):
            rank -= 1
            if rank + 1 < wanted:
                store_long(chosen + 8 * rank + 8, load_long(chosen + 8 * rank))
        if rank < wanted:
            store_long(chosen + 8 * rank, place)


@inner_kernel
def _limit_to_groups(m, scores, room):
    """Set scores to nothing but in the best groups: those whose two best experts have the largest
    sum.
    """
    groups, wanted = word(m, w.GROUPS), word(m, w.ACTIVE_GROUPS)
    size = word(m, w.NUM_EXPERTS) // groups
    sums, best = room, room + 4 * groups + 4 * (groups & 1)
    for group in range(groups):
        first = second = _NOTHING
        for place in range(group * size, (group + 1) * size):
            value = np.float32(load_float(scores + 4 * place))
            if value > first:
                first, second = value, first
            elif value > second:
                second = value
        store_float(sums + 4 * group, first + second if size > 1 else first)
    choose(sums, groups, wanted, best)
    for group in range(groups):
        taken = False
        for rank in range(wanted):
            taken = taken or load_long(best + 8 * rank) == group
        if not taken:
            for place in range(group * size, (group + 1) * size):
                store_float(scores + 4 * place, _NOTHING)


@inner_kernel
def _weigh(m, scores, chosen, weights):
    """Weights f32 [active] of the chosen experts."""
    active = word(m, w.ACTIVE)
    for rank in range(active):
        store_float(weights + 4 * rank, load_float(scores + 4 * load_long(chosen + 8 * rank)))
    if word(m, w.RENORMALISE) != 0:
        total = np.float32(0.0)
        for rank in range(active):
            total += np.float32(load_float(weights + 4 * rank))
        total = max(total, _LEAST_SUM)
        for rank in range(active):
            value = np.float32(load_float(weights + 4 * rank))
            store_float(weights + 4 * rank, value / total)
    factor = bits_to_float(np.int32(word(m, w.SCALE_BITS)))
    for rank in range(active):
        value = np.float32(load_float(weights + 4 * rank))
        store_float(weights + 4 * rank, value * factor)


@inner_kernel
def route(m, logits, room, chosen, weights):
    """Experts int64 [active] and weights f32 [active] of a row with these f32 logits, at addresses.

    `room` has 24 bytes for each expert, their number rounded up to 16.
    """
    count, active = word(m, w.NUM_EXPERTS), word(m, w.ACTIVE)
    room_each = 4 * (count + 15 & ~15)
    scores, choice = room, room + room_each
    if word(m, w.ROUTER + w.BIAS) != 0:
        bias = (word(m, w.ROUTER + w.BIAS), logits, count + 15 >> 4, np.int64(_ONE))
        call_row(word(m, w.ADD_SCALED), bias)
    if word(m, w.ROUTER_SCALE_BITS) != _ONE:
        scale = (logits, logits, count + 15 >> 4, word(m, w.ROUTER_SCALE_BITS))
        call_row(word(m, w.SCALE), scale)
    if word(m, w.SCORE) != 0:
        call_row(word(m, w.SCORE), (logits, scores, count))
    else:
        call_row(word(m, w.SCALE), (logits, scores, count + 15 >> 4, np.int64(_ONE)))
    if word(m, w.CHOICE_BIAS) == 0 and word(m, w.GROUPS) == 1:
        # In the order of scores, and where these are equal for want of digits too.
        choose(logits, count, active, chosen)
    else:
        for place in range(count):
            value = np.float32(load_float(scores + 4 * place))
            if word(m, w.CHOICE_BIAS) != 0:
                value += np.float32(load_float(word(m, w.CHOICE_BIAS) + 4 * place))
            store_float(choice + 4 * place, value)
        if word(m, w.GROUPS) > 1:
            _limit_to_groups(m, choice, choice + room_each)
        choose(choice, count, active, chosen)
    if word(m, w.SCORE) == 0:
        for rank in range(active):
            value = load_float(logits + 4 * load_long(chosen + 8 * rank))
            store_float(choice + 4 * rank, value)
        call_row(word(m, w.SOFTMAX), (choice, choice, active))
        for rank in range(active):
            place = scores + 4 * load_long(chosen + 8 * rank)
            store_float(place, load_float(choice + 4 * rank))
    _weigh(m, scores, chosen, weights)


@inner_kernel
def group(m, num_rows):
    """All slots of a pass in the order of their experts, and which experts have any."""
    count, slots = word(m, w.NUM_EXPERTS), num_rows * word(m, w.ACTIVE)
    chosen, offsets = word(m, w.CHOSEN), word(m, w.OFFSETS)
    for expert in range(count + 1):
        store_long(offsets + 8 * expert, 0)
    for slot in range(slots):
        place = offsets + 8 * load_long(chosen + 8 * slot)
        store_long(place, load_long(place) + 1)
    begin = read = 0
    for expert in range(count):
        size = load_long(offsets + 8 * expert)
        store_long(offsets + 8 * expert, begin)
        begin += size
        if size > 0:
            store_long(word(m, w.READ) + 8 * read, expert)
            read += 1
    for slot in range(slots):
        cursor = offsets + 8 * load_long(chosen + 8 * slot)
        place = load_long(cursor)
        store_long(cursor, place + 1)
        store_long(word(m, w.PLACES) + 8 * slot, place)
        store_long(word(m, w.SLOTS) + 8 * place, slot)
    for expert in range(count, 0, -1):  # each cursor is where the next expert begins
        store_long(offsets + 8 * expert, load_long(offsets + 8 * expert - 8))
    store_long(offsets, 0)
    store_long(word(m, w.NUM_READ), read)
    store_long(word(m, w.EXPERTS_READ), read)


@inner_kernel
def route_rows(m, thread, threads, num_rows):
    """This thread's share of routing; the thread that is done last groups the rows."""
    active, row_bytes = word(m, w.ACTIVE), word(m, w.LOGITS_STRIDE)
    room = word(m, w.ROOM) + thread * word(m, w.ROOM_STRIDE)
    for row in range(thread, num_rows, threads):
        logits, slot = word(m, w.LOGITS) + row * row_bytes, row * active
        route(m, logits, room, word(m, w.CHOSEN) + 8 * slot, word(m, w.WEIGHTS) + 4 * slot)
        if word(m, w.SHARED + w.PART_WIDTH) != 0:
            share = np.float32(1.0)
            if word(m, w.SHARED_GATE + w.MATRIX) != 0:
                gate = logits + 64 * (word(m, w.NUM_EXPERTS) + 15 >> 4)
                call_row(word(m, w.SIGMOID), (gate, gate, np.int64(1)))
                share = np.float32(load_float(gate))
            store_float(word(m, w.SHARED_WEIGHTS) + 4 * row, share)
    if atomic_add(word(m, w.ARRIVED), 1) == threads - 1:
        store_long(word(m, w.ARRIVED), 0)
        group(m, num_rows)
