"""The transformer's layers over n nodes, in one compiled call.

A stage with real work is one parallel region; the short row-wise stages run on the calling thread
when n is small. All buffers are handed in; rows are padded to the tile sizes, and what stands in
padding rows is never read as a result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from edgespec.backends.native.kernels.attention import ROWS_PER_ITEM, attend, store_kv
from edgespec.backends.native.kernels.intrinsics import call_row, call_tile
from edgespec.jit import inner_kernel, parallel_kernel

NORM, QUANTISE, GATE = 0, 1, 2
"""Places in the table of row operations."""
WQ, WK, WV, WO, WGATE, WUP, WDOWN = range(7)
"""Places of a layer's matrices."""
TYPE, WEIGHTS, SCALES, TILES, BLOCKS, TILE_BYTES, SCALE_BYTES, IS_FLOAT = range(8)
"""Columns of the table of matrices."""
(ATTENTION_NORM, QKV, PLACE, ATTEND, ATTENDED, ATTENTION_OUT, FFN_NORM, GATE_UP, GATED, DOWN) = (
    range(10)
)
"""Stages of a layer."""
LAST_NORM, HEAD = 10, 11
FEW = 2
"""Up to this many nodes, row-wise stages cost less than starting a parallel region."""


class Shape(NamedTuple):
    """The numbers of the architecture that kernels need."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dim: int
    ffn_dim: int
    rope_dim: int
    interleaved: int
    qk_norm: int
    epsilon_bits: int
    query_scale: float


class Rows(NamedTuple):
    """Activations of all nodes that feed a matmul: as f32, and as int8 with the planes of
    `tile.py`.
    """

    values: Any
    """f32 [rows, width]."""
    quants: Any
    """i8 [rows, width]; width 0 when nothing quantised reads it."""
    planes: Any
    """i32 [planes, rows, blocks]."""


class Arena(NamedTuple):
    """Where keys and values are: block addresses and the sizes inside a block, in bytes."""

    blocks: Any
    block: int
    num_heads: int
    plane_bytes: int
    key_tile_bytes: int
    value_bytes: int


class Tree(NamedTuple):
    """The nodes of one pass (see `attention.py`): P and [n] arrays."""

    length: int
    depth: Any
    run: Any
    extra_start: Any
    extra: Any


class Weights(NamedTuple):
    """Tables of addresses [layers, 7, 8], and the small f32 vectors."""

    matrices: Any
    head: Any
    norms: Any
    """f32 [layers, 2, dim]."""
    last_norm: Any
    head_norms: Any
    """f32 [layers, 2, head_dim]: of queries and keys; empty without qk_norm."""
    biases: Any
    """f32 [layers, q_dim + 2 * kv_dim]; width 0 without."""


class Buffers(NamedTuple):
    """Scratch of a session, allocated once; flat, because Numba's regions take no nested tuples."""

    stream: Any
    """f32 [rows, dim]: the residual stream."""
    query: Any
    key: Any
    value: Any
    up: Any
    queries: Any
    """f32 [kv_heads, rows * group, head_pad]: rotated, scaled."""
    cosines: Any
    sines: Any
    scores: Any
    """f32 [threads, 16, slots]."""
    mixed: Any
    inverse: Any
    logits: Any


@inner_kernel
def _quantise(ops, rows, row, width):
    """Fill a row's int8 form, when some matrix reads it."""
    if rows.quants.shape[1] == 0:
        return
    call_row(
        ops[QUANTISE],
        rows.values.ctypes.data + row * rows.values.strides[0],
        rows.quants.ctypes.data + row * rows.quants.strides[0],
        rows.planes.ctypes.data + row * rows.planes.strides[1],
        rows.planes.strides[0],
        width >> 5,
        0,
        0,
        0,
    )


@inner_kernel
def _norm_row(ops, stream, source, weight, epsilon_bits, rows, target):
    """Norm one row of the residual stream and quantise it."""
    width = stream.shape[1]
    call_row(
        ops[NORM],
        stream.ctypes.data + source * stream.strides[0],
        weight.ctypes.data,
        rows.values.ctypes.data + target * rows.values.strides[0],
        width >> 4,
        epsilon_bits,
        0,
        0,
        0,
    )
    _quantise(ops, rows, target, width)


@inner_kernel
def _gate_row(ops, rows, up, row, width):
    """silu(gate) * up in place of gate, then quantised."""
    place = rows.values.ctypes.data + row * rows.values.strides[0]
    call_row(
        ops[GATE],
        place,
        up.ctypes.data + row * up.strides[0],
        place,
        rows.values.shape[1] >> 4,
        0,
        0,
        0,
        0,
    )
    _quantise(ops, rows, row, width)


@inner_kernel
def _multiply(thread, threads, matrix, tiles, sizes, rows, num_rows, output, accumulate):
    """This thread's share of output[n] = rows[n] x matrix: whole tiles of 16 outputs."""
    kind, count = matrix[TYPE], matrix[TILES]
    size = sizes[kind]
    if matrix[IS_FLOAT] != 0:
        data, stride = rows.values.ctypes.data, rows.values.strides[0]
    else:
        data, stride = rows.quants.ctypes.data, rows.quants.strides[0]
    planes, plane_stride, row_stride = (
        rows.planes.ctypes.data,
        rows.planes.strides[0],
        rows.planes.strides[1],
    )
    for index in range(count * thread // threads, count * (thread + 1) // threads):
        weights = matrix[WEIGHTS] + index * matrix[TILE_BYTES]
        scales = matrix[SCALES] + index * matrix[SCALE_BYTES]
        for first in range(0, num_rows, size):
            call_tile(
                tiles[kind],
                weights,
                scales,
                data + first * stride,
                planes + first * row_stride,
                output.ctypes.data + first * output.strides[0] + index * 64,
                matrix[BLOCKS],
                stride,
                row_stride,
                plane_stride,
                output.strides[0],
                min(size, num_rows - first),
                accumulate,
            )


@inner_kernel
def _rotate(row, cosines, sines, interleaved):
    """RoPE in place on the leading dimensions of one head."""
    half = cosines.shape[0]
    for i in range(half):
        first, second = (2 * i, 2 * i + 1) if interleaved != 0 else (i, i + half)
        real, imaginary = row[first], row[second]
        row[first] = real * cosines[i] - imaginary * sines[i]
        row[second] = real * sines[i] + imaginary * cosines[i]


@inner_kernel
def _place(ops, shape, weights, layer, arena, tree, buffers, node):
    """Bias, norm, rotate and scale one node's queries; rotate and store its keys and values."""
    dim, group = shape.head_dim, shape.num_heads // shape.num_kv_heads
    q_dim, kv_dim = shape.num_heads * dim, shape.num_kv_heads * dim
    query, key, value = buffers.query[node], buffers.key[node], buffers.value[node]
    cosines, sines = buffers.cosines[node], buffers.sines[node]
    if weights.biases.shape[1] > 0:
        bias = weights.biases[layer]
        for i in range(q_dim):
            query[i] += bias[i]
        for i in range(kv_dim):
            key[i] += bias[q_dim + i]
            value[i] += bias[q_dim + kv_dim + i]
    for index in range(shape.num_heads + shape.num_kv_heads):
        of_key = index >= shape.num_heads
        head = index - shape.num_heads if of_key else index
        row = key[head * dim : (head + 1) * dim] if of_key else query[head * dim : (head + 1) * dim]
        if shape.qk_norm != 0:
            gain = weights.head_norms[layer, 1 if of_key else 0]
            place = row.ctypes.data
            call_row(
                ops[NORM], place, gain.ctypes.data, place, dim >> 4, shape.epsilon_bits, 0, 0, 0
            )
        _rotate(row, cosines, sines, shape.interleaved)
        if of_key:
            slot = tree.length + node
            store_kv(arena, layer, head, slot, row, value[head * dim : (head + 1) * dim])
        else:
            target = buffers.queries[head // group, node * group + head % group]
            for i in range(dim):
                target[i] = row[i] * np.float32(shape.query_scale)


@inner_kernel
def _attend_share(thread, threads, ops, shape, layer, arena, tree, buffers, output, num_nodes):
    """This thread's items of attention, dealt out in turn."""
    group = shape.num_heads // shape.num_kv_heads
    num_rows = num_nodes * group
    size = min(ROWS_PER_ITEM, num_rows)
    while size > 1 and shape.num_kv_heads * ((num_rows + size - 1) // size) < threads:
        size = (size + 1) // 2
    per_head = (num_rows + size - 1) // size
    for item in range(thread, shape.num_kv_heads * per_head, threads):
        head, first = item // per_head, item % per_head * size
        attend(
            ops,
            arena,
            tree,
            layer,
            head,
            group,
            shape.head_dim,
            buffers.queries[head],
            first,
            min(size, num_rows - first),
            buffers.scores[thread],
            buffers.mixed[thread],
            buffers.inverse[thread],
            output,
        )


@inner_kernel
def _angles(shape, frequencies, tree, buffers, num_nodes):
    """Cosines and sines of all nodes' positions, [n, rope_dim / 2]."""
    for node in range(num_nodes):
        position = tree.length + tree.depth[node]
        for i in range(frequencies.shape[0]):
            angle = position * frequencies[i]
            buffers.cosines[node, i] = np.float32(np.cos(angle))
            buffers.sines[node, i] = np.float32(np.sin(angle))


@inner_kernel
def _run_stage(
    stage,
    thread,
    threads,
    layer,
    shape,
    weights,
    ops,
    tiles,
    sizes,
    arena,
    tree,
    buffers,
    normed,
    attended,
    gated,
    first,
    num_rows,
):
    """One thread's share of one stage; every stage writes only what no other thread of it reads."""
    stream, matrices = buffers.stream, weights.matrices[layer]
    if stage in (ATTENTION_NORM, FFN_NORM, LAST_NORM):
        gain = weights.last_norm if stage == LAST_NORM else weights.norms[layer, stage // FFN_NORM]
        for row in range(thread, num_rows, threads):
            _norm_row(ops, stream, first + row, gain, shape.epsilon_bits, normed, row)
    elif stage == QKV:
        _multiply(thread, threads, matrices[WQ], tiles, sizes, normed, num_rows, buffers.query, 0)
        _multiply(thread, threads, matrices[WK], tiles, sizes, normed, num_rows, buffers.key, 0)
        _multiply(thread, threads, matrices[WV], tiles, sizes, normed, num_rows, buffers.value, 0)
    elif stage == PLACE:
        for node in range(thread, num_rows, threads):
            _place(ops, shape, weights, layer, arena, tree, buffers, node)
    elif stage == ATTEND:
        _attend_share(
            thread, threads, ops, shape, layer, arena, tree, buffers, attended.values, num_rows
        )
    elif stage == ATTENDED:
        for node in range(thread, num_rows, threads):
            _quantise(ops, attended, node, shape.num_heads * shape.head_dim)
    elif stage == ATTENTION_OUT:
        _multiply(thread, threads, matrices[WO], tiles, sizes, attended, num_rows, stream, 1)
    elif stage == GATE_UP:
        _multiply(thread, threads, matrices[WGATE], tiles, sizes, normed, num_rows, gated.values, 0)
        _multiply(thread, threads, matrices[WUP], tiles, sizes, normed, num_rows, buffers.up, 0)
    elif stage == GATED:
        for node in range(thread, num_rows, threads):
            _gate_row(ops, gated, buffers.up, node, shape.ffn_dim)
    elif stage == DOWN:
        _multiply(thread, threads, matrices[WDOWN], tiles, sizes, gated, num_rows, stream, 1)
    elif stage == HEAD:
        _multiply(thread, threads, weights.head, tiles, sizes, normed, num_rows, buffers.logits, 0)


@parallel_kernel
def run(
    shape,
    weights,
    frequencies,
    ops,
    tiles,
    sizes,
    arena,
    tree,
    buffers,
    normed,
    attended,
    gated,
    num_layers,
    first,
    num_rows,
    threads,
):
    """Run `num_layers` layers over the residual stream [n, dim], in place; keys and values go to
    the arena.

    With no layers: the logits [rows, vocab] of the rows from `first` on. One parallel region for
    all stages keeps the compile time of this function that of one.
    """
    _angles(shape, frequencies, tree, buffers, num_rows)
    begin, end = (0, LAST_NORM) if num_layers > 0 else (LAST_NORM, HEAD + 1)
    for layer in range(max(num_layers, 1)):
        for stage in range(begin, end):
            heavy = stage in (QKV, ATTEND, ATTENTION_OUT, GATE_UP, DOWN, HEAD)
            if threads == 1 or (num_rows <= FEW and not heavy):
                _run_stage(
                    stage,
                    0,
                    1,
                    layer,
                    shape,
                    weights,
                    ops,
                    tiles,
                    sizes,
                    arena,
                    tree,
                    buffers,
                    normed,
                    attended,
                    gated,
                    first,
                    num_rows,
                )
            else:
                for thread in prange(threads):
                    _run_stage(
                        stage,
                        thread,
                        threads,
                        layer,
                        shape,
                        weights,
                        ops,
                        tiles,
                        sizes,
                        arena,
                        tree,
                        buffers,
                        normed,
                        attended,
                        gated,
                        first,
                        num_rows,
                    )
