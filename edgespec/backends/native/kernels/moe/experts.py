"""The experts themselves: rows of one expert go through its matrices together.

Two stages. Gate and up: units are slices of an expert's width, so that threads share the work where
one row has a few narrow experts. Down: units are slices of the output, through all experts, so that
a row's sum is made while its parts are in the cache: in the order of the row's scores, then the
shared expert. A tile function treats each row alike whatever rows are beside it, so neither what
else is in the pass nor who computes a unit changes a row.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import (
    call_row,
    call_tile,
    load_int,
    load_long,
)
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.moe import words as w
from edgespec.backends.native.kernels.work_sharing import first_unit, next_unit
from edgespec.system.addresses import word
from edgespec.system.jit import inner_kernel

_ONE = 0x3F800000
_COLUMNS = 16 * w.UNIT


@inner_kernel
def _where(m, matrix, expert):
    """The address of two words, the addresses of an expert's weights and scales; `expert` is -1 for
    a matrix that all rows go through.
    """
    if expert < 0:
        return word(m, matrix + w.MATRIX) + 8 * t.WEIGHTS
    return word(m, w.HELD) + 8 * (w.HELD_WORDS * expert + 2 * ((matrix - w.EXPERTS) // 3))


@inner_kernel
def multiply(m, matrix, expert, rows, row, num_rows, first, last, output, stride):
    """Outputs of tiles `first` .. `last` of a matrix for consecutive rows of an input; `matrix` is
    the first of its words in `m`, `rows` the address of the input's.
    """
    where = _where(m, matrix, expert)
    place, functions = word(m, matrix + w.MATRIX), word(m, matrix + w.TILES)
    functions += 16 * (min(num_rows, w.TILE_COUNTS) - 1)
    function, size = load_long(functions), load_long(functions + 8)
    steps, weight_bytes = word(place, t.STEPS), word(place, t.TILE_BYTES)
    data, data_stride = word(rows, t.QUANTS), word(rows, t.QUANTS_STRIDE)
    if word(place, t.IS_FLOAT) != 0:
        data, data_stride = word(rows, t.FLOATS), word(rows, t.FLOATS_STRIDE)
    planes, planes_stride = word(rows, t.PLANES), word(rows, t.PLANES_STRIDE)
    for index in range(first, last):
        for done in range(0, num_rows, size):
            call_tile(
                function,
                (
                    word(where, 0) + index * weight_bytes,
                    word(where, 1) + index * word(place, t.SCALE_BYTES),
                    data + (row + done) * data_stride,
                    planes + (row + done) * planes_stride,
                    output + done * stride + (index - first) * 64,
                    steps,
                    data_stride,
                    planes_stride,
                    word(rows, t.PLANE_BYTES_EACH),
                    stride,
                    min(size, num_rows - done),
                    np.int64(0),
                ),
            )


@inner_kernel
def unit_bytes(m, matrix):
    """Bytes of weights that a unit of a matrix goes through."""
    place = word(m, matrix + w.MATRIX)
    return w.UNIT * (word(place, t.TILE_BYTES) + word(place, t.SCALE_BYTES))


@inner_kernel
def router_share(c, m, thread, num_rows):
    """This thread's share of the logits, a tile at a time, and of the shared expert's gate."""
    tiles, stride = word(m, w.NUM_EXPERTS) + 15 >> 4, word(m, w.LOGITS_STRIDE)
    count = tiles + np.int64(word(m, w.SHARED_GATE + w.MATRIX) != 0)
    num_bytes = unit_bytes(m, np.int64(w.ROUTER)) // w.UNIT
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        matrix, first = np.int64(w.ROUTER), unit
        if unit == tiles:
            matrix, first = np.int64(w.SHARED_GATE), np.int64(0)
        output, rows = word(m, w.LOGITS) + 64 * unit, word(m, w.INPUT)
        zero, all_rows = np.int64(0), np.int64(-1)
        multiply(m, matrix, all_rows, rows, zero, num_rows, first, first + 1, output, stride)
        unit = next_unit(c, thread, unit, count, num_bytes)


@inner_kernel
def _gather(m, thread, begin, end):
    """The inputs of an expert's rows one below the other in this thread's room."""
    source, target = word(m, w.INPUT), word(m, w.GATHERED) + 64 * thread
    dim, active = word(m, w.DIM), word(m, w.ACTIVE)
    for place in range(begin, end):
        row, to = load_long(word(m, w.SLOTS) + 8 * place) // active, place - begin
        if word(target, t.FLOATS) != 0:
            there = word(source, t.FLOATS) + row * word(source, t.FLOATS_STRIDE)
            here = word(target, t.FLOATS) + to * word(target, t.FLOATS_STRIDE)
            call_row(word(m, w.COPY), (there, here, 0, 0, 1, dim))
        if word(target, t.HAS_QUANTS) != 0:
            there = word(source, t.QUANTS) + row * word(source, t.QUANTS_STRIDE)
            here = word(target, t.QUANTS) + to * word(target, t.QUANTS_STRIDE)
            call_row(word(m, w.COPY), (there, here, 0, 0, 1, dim >> 2))
            there = word(source, t.PLANES) + row * word(source, t.PLANES_STRIDE)
            here = word(target, t.PLANES) + to * word(target, t.PLANES_STRIDE)
            planes = (word(source, t.PLANE_BYTES_EACH), word(target, t.PLANE_BYTES_EACH))
            call_row(word(m, w.COPY), (there, here, *planes, tile.NUM_PLANES, dim >> 5))


@inner_kernel
def _gate_up(m, part, thread, rows, row, num_rows, first, place, expert):
    """A unit of a part for consecutive rows of an input: from tile `first` of its width on, into
    its inner rows from `place` on. `expert` is -1 for the shared one.
    """
    room = word(m, w.ROOM) + thread * word(m, w.ROOM_STRIDE)
    gates, ups = room + word(m, w.GATE_ROOM), room + word(m, w.UP_ROOM)
    width, bits, stride = word(m, part + w.PART_WIDTH), np.int64(_ONE), np.int64(w.ROOM_BYTES)
    last = first + min(w.UNIT, (width + 15 >> 4) - first)
    multiply(m, part + w.GATE, expert, rows, row, num_rows, first, last, gates, stride)
    multiply(m, part + w.UP, expert, rows, row, num_rows, first, last, ups, stride)
    gate_bias, up_bias = word(m, part + w.GATE + w.BIAS), word(m, part + w.UP + w.BIAS)
    of_expert = 4 * (max(expert, 0) * width + 16 * first)
    columns = min(_COLUMNS, width - 16 * first)
    vectors = columns + 15 >> 4
    inner = word(m, part + w.INNER)
    for index in range(num_rows):
        gate, up, target = gates + index * w.ROOM_BYTES, ups + index * w.ROOM_BYTES, place + index
        if expert >= 0 and word(m, w.WEIGH_INPUT) != 0:
            weight = word(m, w.WEIGHTS) + 4 * load_long(word(m, w.SLOTS) + 8 * target)
            bits = load_int(weight)
            call_row(word(m, w.SCALE), (gate, gate, vectors, bits))
            call_row(word(m, w.SCALE), (up, up, vectors, bits))
        if gate_bias != 0:
            call_row(word(m, w.ADD_SCALED), (gate_bias + of_expert, gate, vectors, np.int64(_ONE)))
        if up_bias != 0:
            call_row(word(m, w.ADD_SCALED), (up_bias + of_expert, up, vectors, np.int64(_ONE)))
        output = gate
        if word(inner, t.FLOATS) != 0:
            output = word(inner, t.FLOATS) + target * word(inner, t.FLOATS_STRIDE) + 64 * first
        call_row(word(m, part + w.ACTIVATE), (gate, up, output, vectors))
        if word(inner, t.HAS_QUANTS) != 0:
            quants = word(inner, t.QUANTS) + target * word(inner, t.QUANTS_STRIDE) + 16 * first
            planes = word(inner, t.PLANES) + target * word(inner, t.PLANES_STRIDE) + 2 * first
            each = word(inner, t.PLANE_BYTES_EACH)
            call_row(word(m, w.QUANTISE), (output, quants, planes, each, columns >> 5))


@inner_kernel
def gate_up_share(c, m, thread, num_rows):
    """This thread's share of activation(gate) * up of all experts with rows, then of the shared."""
    experts, shared = np.int64(w.EXPERTS), np.int64(w.SHARED)
    width = word(m, w.PART_WIDTH)
    units = (width + _COLUMNS - 1) // _COLUMNS
    own = load_long(word(m, w.NUM_READ)) * units
    count = own + (word(m, w.SHARED + w.PART_WIDTH) + _COLUMNS - 1) // _COLUMNS
    num_bytes = unit_bytes(m, experts + w.GATE) + unit_bytes(m, experts + w.UP)
    zero, gathered = np.int64(0), np.int64(-1)
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        if unit < own:
            expert, first = load_long(word(m, w.READ) + 8 * (unit // units)), unit % units * w.UNIT
            begin = word(word(m, w.OFFSETS), expert)
            end = word(word(m, w.OFFSETS), expert + 1)
            rows, row = word(m, w.INPUT), word(word(m, w.SLOTS), begin) // word(m, w.ACTIVE)
            if end - begin > 1:  # a single row is read where it is
                if gathered != expert:
                    _gather(m, thread, begin, end)
                    gathered = expert
                rows, row = word(m, w.GATHERED) + 64 * thread, 0
            _gate_up(m, experts, thread, rows, row, end - begin, first, begin, expert)
        else:
            first, alone = (unit - own) * w.UNIT, np.int64(-1)
            rows = word(m, w.INPUT)
            _gate_up(m, shared, thread, rows, zero, num_rows, first, zero, alone)
        unit = next_unit(c, thread, unit, count, num_bytes)


@inner_kernel
def _down(m, expert, room, first, last, vectors):
    """An expert's outputs of some tiles for its rows, at their places in the order of experts."""
    begin, end = word(word(m, w.OFFSETS), expert), word(word(m, w.OFFSETS), expert + 1)
    matrix, inner = np.int64(w.EXPERTS + w.DOWN), word(m, w.EXPERTS + w.INNER)
    output, stride = room + begin * w.ROOM_BYTES, np.int64(w.ROOM_BYTES)
    multiply(m, matrix, expert, inner, begin, end - begin, first, last, output, stride)
    bias, scales = word(m, w.EXPERTS + w.DOWN + w.BIAS), word(m, w.EXPERT_SCALE)
    if bias == 0 and scales == 0:
        return
    values = bias + 4 * (expert * word(m, w.DIM) + 16 * first)
    for index in range(end - begin):
        row = output + index * w.ROOM_BYTES
        if scales != 0:
            call_row(word(m, w.SCALE), (row, row, vectors, load_int(scales + 4 * expert)))
        if bias != 0:
            call_row(word(m, w.ADD_SCALED), (values, row, vectors, np.int64(_ONE)))


@inner_kernel
def _sum(m, row, room, shared, total, output, vectors):
    """A row's sum over its experts at `total`, then to the output."""
    active = word(m, w.ACTIVE)
    for rank in range(active):
        slot, weight = row * active + rank, np.int64(_ONE)
        if word(m, w.WEIGH_INPUT) == 0:
            weight = load_int(word(m, w.WEIGHTS) + 4 * slot)
        part = room + word(word(m, w.PLACES), slot) * w.ROOM_BYTES
        operation = word(m, w.SCALE if rank == 0 else w.ADD_SCALED)
        call_row(operation, (part, total, vectors, weight))
    if word(m, w.SHARED + w.PART_WIDTH) != 0:
        weight = load_int(word(m, w.SHARED_WEIGHTS) + 4 * row)
        part = shared + row * w.ROOM_BYTES
        call_row(word(m, w.ADD_SCALED), (part, total, vectors, weight))
    operation = word(m, w.ADD_SCALED if word(m, w.ACCUMULATE) != 0 else w.SCALE)
    call_row(operation, (total, output, vectors, word(m, w.RESIDUAL_BITS)))


@inner_kernel
def down_share(c, m, thread, num_rows):
    """This thread's share of the output: a slice of all rows through all experts at a time."""
    dim, read = word(m, w.DIM), load_long(word(m, w.NUM_READ))
    tiles, count = dim + 15 >> 4, (dim + _COLUMNS - 1) // _COLUMNS
    matrix, zero = np.int64(w.SHARED + w.DOWN), np.int64(0)
    num_bytes = read * unit_bytes(m, np.int64(w.EXPERTS + w.DOWN))
    if word(m, w.SHARED + w.PART_WIDTH) != 0:
        num_bytes += unit_bytes(m, matrix)
    base = word(m, w.ROOM) + thread * word(m, w.ROOM_STRIDE)
    room, shared = base + word(m, w.DOWN_ROOM), base + word(m, w.SHARED_ROOM)
    stride = np.int64(w.ROOM_BYTES)
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        first, last = unit * w.UNIT, min(unit * w.UNIT + w.UNIT, tiles)
        vectors = last - first
        for place in range(read):  # ascending: what pads one expert's rows is overwritten next
            _down(m, word(word(m, w.READ), place), room, first, last, vectors)
        if word(m, w.SHARED + w.PART_WIDTH) != 0:
            inner = word(m, w.SHARED + w.INNER)
            alone = np.int64(-1)
            multiply(m, matrix, alone, inner, zero, num_rows, first, last, shared, stride)
        for row in range(num_rows):
            output = word(m, w.OUTPUT) + row * word(m, w.OUTPUT_STRIDE) + 64 * first
            _sum(m, row, room, shared, base + word(m, w.SUM_ROOM), output, vectors)
        unit = next_unit(c, thread, unit, count, num_bytes)
