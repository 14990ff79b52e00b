"""The transformer's layers over n nodes, in one compiled call.

Each stage is one parallel region; the short row-wise stages run on the calling thread when n is
small. All scratch is handed in through the table `c` (see `table.py`); rows are padded to the tile
sizes, and what stands in padding rows is never read as a result. Constants are passed as
`np.int64(...)`, because Numba compiles a function anew for every literal it is called with.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.attention import attend_share, store_kv
from edgespec.backends.native.kernels.intrinsics import (
    bits_to_float,
    call_row,
    call_tile,
    load_double,
    load_float,
    load_int,
    load_long,
    store_float,
)
from edgespec.jit import inner_kernel, parallel_kernel

(ATTENTION_NORM, QKV, PLACE, ATTEND, ATTENDED, ATTENTION_OUT, FFN_NORM, GATE_UP, GATED, DOWN) = (
    range(10)
)
"""Stages of a layer."""
LAST_NORM, HEAD = 10, 11
WHICH = np.array(
    [[0, 0], [0, 3], [0, 0], [0, 0], [0, 0], [3, 4], [0, 0], [4, 6], [0, 0], [6, 7], [0, 0], [7, 8]]
)
"""By stage, the first of its matrices and the first that is not."""
FEW = 4096
"""Up to this many elements, row-wise stages cost less than starting a parallel region."""


@inner_kernel
def _quantise(c, rows, row, width):
    """Fill a row's int8 form, when some matrix may read it."""
    if c[rows + t.HAS_QUANTS] != 0:
        call_row(
            c[t.OPS + t.QUANTISE],
            c[rows + t.FLOATS] + row * c[rows + t.FLOATS_STRIDE],
            c[rows + t.QUANTS] + row * c[rows + t.QUANTS_STRIDE],
            c[rows + t.PLANES] + row * c[rows + t.PLANES_STRIDE],
            c[rows + t.PLANE_BYTES_EACH],
            width >> 5,
            0,
            0,
            0,
        )


@inner_kernel
def _norm_row(c, source, weight, target):
    """Norm one row of the residual stream into a row of NORMED, and quantise it."""
    call_row(
        c[t.OPS + t.NORM],
        c[t.STREAM] + source * c[t.STREAM_STRIDE],
        weight,
        c[t.NORMED + t.FLOATS] + target * c[t.NORMED + t.FLOATS_STRIDE],
        c[t.DIM] >> 4,
        c[t.EPSILON_BITS],
        0,
        0,
        0,
    )
    _quantise(c, np.int64(t.NORMED), target, c[t.DIM])


@inner_kernel
def _gate_row(c, row):
    """silu(gate) * up in place of gate, then quantised."""
    gate = c[t.GATED + t.FLOATS] + row * c[t.GATED + t.FLOATS_STRIDE]
    up = c[t.UP] + row * c[t.UP_STRIDE]
    call_row(c[t.OPS + t.GATE], gate, up, gate, (c[t.FFN_DIM] + 15) >> 4, 0, 0, 0, 0)
    _quantise(c, np.int64(t.GATED), row, c[t.FFN_DIM])


@inner_kernel
def _multiply(c, thread, threads, matrix, rows, num_rows, output, output_stride, accumulate):
    """This thread's share of output[n] = rows[n] x matrix: whole tiles of 16 outputs."""
    kind, count = load_long(matrix + 8 * t.TYPE), load_long(matrix + 8 * t.NUM_TILES)
    tile, size, steps = c[t.TILES + kind], c[t.SIZES + kind], load_long(matrix + 8 * t.STEPS)
    tile_bytes = load_long(matrix + 8 * t.TILE_BYTES)
    scale_bytes = load_long(matrix + 8 * t.SCALE_BYTES)
    if load_long(matrix + 8 * t.IS_FLOAT) != 0:
        data, stride = c[rows + t.FLOATS], c[rows + t.FLOATS_STRIDE]
    else:
        data, stride = c[rows + t.QUANTS], c[rows + t.QUANTS_STRIDE]
    planes, planes_stride = c[rows + t.PLANES], c[rows + t.PLANES_STRIDE]
    for index in range(count * thread // threads, count * (thread + 1) // threads):
        weights = load_long(matrix + 8 * t.WEIGHTS) + index * tile_bytes
        scales = load_long(matrix + 8 * t.SCALES) + index * scale_bytes
        for first in range(0, num_rows, size):
            call_tile(
                tile,
                weights,
                scales,
                data + first * stride,
                planes + first * planes_stride,
                output + first * output_stride + index * 64,
                steps,
                stride,
                planes_stride,
                c[rows + t.PLANE_BYTES_EACH],
                output_stride,
                min(size, num_rows - first),
                accumulate,
            )


@inner_kernel
def _rotate(c, row, cosines, sines):
    """RoPE in place on the leading dimensions of one head, f32 at an address."""
    half = c[t.ROPE_HALF]
    for i in range(half):
        if c[t.INTERLEAVED] != 0:
            first, second = row + 8 * i, row + 8 * i + 4
        else:
            first, second = row + 4 * i, row + 4 * (i + half)
        real, imaginary = load_float(first), load_float(second)
        cosine, sine = load_float(cosines + 4 * i), load_float(sines + 4 * i)
        store_float(first, real * cosine - imaginary * sine)
        store_float(second, real * sine + imaginary * cosine)


@inner_kernel
def _add(target, source, count):
    """target[count] += source[count], f32 at two addresses."""
    for i in range(count):
        store_float(target + 4 * i, load_float(target + 4 * i) + load_float(source + 4 * i))


@inner_kernel
def _head_norm(c, row, layer, which):
    """RMSNorm of one head in place (Qwen3): which is 0 for queries, 1 for keys."""
    gain = c[t.HEAD_NORMS] + (layer * 2 + which) * c[t.HEAD_DIM] * 4
    call_row(c[t.OPS + t.NORM], row, gain, row, c[t.HEAD_DIM] >> 4, c[t.EPSILON_BITS], 0, 0, 0)


@inner_kernel
def _place(c, layer, node):
    """Bias, norm, rotate and scale one node's queries; rotate and store its keys and values."""
    dim, group = c[t.HEAD_DIM], c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    q_dim, kv_dim = c[t.NUM_HEADS] * dim, c[t.NUM_KV_HEADS] * dim
    query = c[t.QUERY] + node * c[t.QUERY_STRIDE]
    key = c[t.KEY] + node * c[t.KEY_STRIDE]
    value = c[t.VALUE] + node * c[t.VALUE_STRIDE]
    cosines = c[t.COSINES] + node * c[t.ANGLE_STRIDE]
    sines = c[t.SINES] + node * c[t.ANGLE_STRIDE]
    if c[t.BIASED] != 0:
        bias = c[t.BIASES] + layer * (q_dim + 2 * kv_dim) * 4
        _add(query, bias, q_dim)
        _add(key, bias + 4 * q_dim, kv_dim)
        _add(value, bias + 4 * (q_dim + kv_dim), kv_dim)
    scale = bits_to_float(np.int32(c[t.QUERY_SCALE_BITS]))
    for head in range(c[t.NUM_HEADS]):
        row = query + 4 * head * dim
        if c[t.QK_NORM] != 0:
            _head_norm(c, row, layer, np.int64(0))
        _rotate(c, row, cosines, sines)
        target = c[t.ROTATED] + head // group * c[t.ROTATED_HEAD]
        target += (node * group + head % group) * c[t.ROTATED_STRIDE]
        for i in range(dim):
            store_float(target + 4 * i, load_float(row + 4 * i) * scale)
    for head in range(c[t.NUM_KV_HEADS]):
        row = key + 4 * head * dim
        if c[t.QK_NORM] != 0:
            _head_norm(c, row, layer, np.int64(1))
        _rotate(c, row, cosines, sines)
        store_kv(c, layer, head, c[t.LENGTH] + node, row, value + 4 * head * dim)


@inner_kernel
def _angles(c, num_nodes):
    """Cosines and sines of all nodes' positions, f32 [n, rope_dim / 2]."""
    for node in range(num_nodes):
        position = np.float64(c[t.LENGTH] + load_int(c[t.DEPTH] + 4 * node))
        for i in range(c[t.ROPE_HALF]):
            angle = position * load_double(c[t.FREQUENCIES] + 8 * i)
            place = node * c[t.ANGLE_STRIDE] + 4 * i
            store_float(c[t.COSINES] + place, np.float32(np.cos(angle)))
            store_float(c[t.SINES] + place, np.float32(np.sin(angle)))


@inner_kernel
def _run_stage(c, stage, thread, threads, layer, first, num_rows):
    """One thread's share of one stage; each writes only what no other thread of it reads."""
    base = c[t.MATRICES] + layer * 7 * 64
    if stage in (ATTENTION_NORM, FFN_NORM, LAST_NORM):
        gain = c[t.NORMS] + (layer * 2 + stage // FFN_NORM) * c[t.DIM] * 4
        if stage == LAST_NORM:
            gain = c[t.LAST_NORM_WEIGHT]
        for row in range(thread, num_rows, threads):
            _norm_row(c, first + row, gain, row)
    elif stage in (PLACE, ATTENDED, GATED):
        for node in range(thread, num_rows, threads):
            if stage == PLACE:
                _place(c, layer, node)
            elif stage == ATTENDED:
                _quantise(c, np.int64(t.ATTENDED), node, c[t.NUM_HEADS] * c[t.HEAD_DIM])
            else:
                _gate_row(c, node)
    elif stage == ATTEND:
        attend_share(c, thread, threads, layer, num_rows)
    else:
        _multiply_stage(c, stage, thread, threads, base, num_rows)


@inner_kernel
def _multiply_stage(c, stage, thread, threads, base, num_rows):
    """The matrices of a stage, one after the other; the loop keeps `_multiply` in one place."""
    begin, end = WHICH[stage, 0], WHICH[stage, 1]
    for which in range(begin, end):
        matrix, rows, accumulate = base + 64 * which, t.NORMED, 0
        if which == t.WQ:
            output, stride = c[t.QUERY], c[t.QUERY_STRIDE]
        elif which == t.WK:
            output, stride = c[t.KEY], c[t.KEY_STRIDE]
        elif which == t.WV:
            output, stride = c[t.VALUE], c[t.VALUE_STRIDE]
        elif which == t.WGATE:
            output, stride = c[t.GATED + t.FLOATS], c[t.GATED + t.FLOATS_STRIDE]
        elif which == t.WUP:
            output, stride = c[t.UP], c[t.UP_STRIDE]
        elif which == t.WHEAD:
            matrix, output, stride = c[t.HEAD_MATRIX], c[t.LOGITS], c[t.LOGITS_STRIDE]
        else:  # back into the residual stream
            rows = t.ATTENDED if which == t.WO else t.GATED
            output, stride, accumulate = c[t.STREAM], c[t.STREAM_STRIDE], 1
        _multiply(c, thread, threads, matrix, rows, num_rows, output, stride, accumulate)


@parallel_kernel
def run(c, num_layers, first, num_rows, threads):
    """Run `num_layers` layers over the residual stream [n, dim], in place; keys and values go to
    the arena. With no layers: the logits [rows, vocab] of the rows from `first` on.
    """
    _angles(c, num_rows)
    begin, end = (0, LAST_NORM) if num_layers > 0 else (LAST_NORM, HEAD + 1)
    for layer in range(max(num_layers, 1)):
        for stage in range(begin, end):
            heavy = stage in (QKV, ATTEND, ATTENTION_OUT, GATE_UP, DOWN, HEAD)
            if threads == 1 or (num_rows * c[t.DIM] <= FEW and not heavy):
                _run_stage(c, stage, np.int64(0), np.int64(1), layer, first, num_rows)
                continue
            for thread in prange(threads):  # one region for all stages: each is compiled anew
                _run_stage(c, stage, np.int64(thread), threads, layer, first, num_rows)
