"""The transformer's layers over n nodes, in one compiled call.

All threads of a team run `_pass` over the same table `c` (see `table.py`), each doing its share of
every stage, and meet between stages (see `work_sharing.py`). Work that needs no other thread's
results is done where its input was made: heads are rotated by the thread that computed them, and
gate and up meet while both are in the cache. Rows are padded to the tile sizes, and what stands in
padding rows is never read as a result. Constants are passed as `np.int64(...)`, because Numba
compiles a function anew for every literal it is called with.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.attention.grouped_query import (
    attend_share,
    finish_node,
    first_query,
    put_query,
)
from edgespec.backends.native.kernels.codegen.intrinsics import (
    bits_to_float,
    call_row,
    call_tile,
    load_double,
    load_float,
    load_long,
    store_float,
)
from edgespec.backends.native.kernels.kv.places import node_entry, part_entry, store_kv
from edgespec.backends.native.kernels.work_sharing import (
    barrier,
    first_unit,
    next_pass,
    next_unit,
    share_out,
    start_pass,
)
from edgespec.system.jit import inner_kernel, kernel

UNIT = 4
"""Tiles of a unit of work: 64 outputs, whole blocks of what quantises them."""


@inner_kernel
def _quantise(c, rows, row, first, width):
    """Fill columns `first` .. `first + width` of a row as int8, when some matrix may read it."""
    if c[rows + t.HAS_QUANTS] != 0:
        call_row(
            c[t.OPS + t.QUANTISE],
            (
                c[rows + t.FLOATS] + row * c[rows + t.FLOATS_STRIDE] + 4 * first,
                c[rows + t.QUANTS] + row * c[rows + t.QUANTS_STRIDE] + first,
                c[rows + t.PLANES] + row * c[rows + t.PLANES_STRIDE] + (first >> 5) * 4,
                c[rows + t.PLANE_BYTES_EACH],
                width >> 5,
            ),
        )


@inner_kernel
def _norm_row(c, source, weight, target):
    """Norm a row [dim] at an address into a row of NORMED, and quantise it."""
    call_row(
        c[t.OPS + t.NORM],
        (
            source,
            weight,
            c[t.NORMED + t.FLOATS] + target * c[t.NORMED + t.FLOATS_STRIDE],
            c[t.DIM] >> 4,
            c[t.EPSILON_BITS],
        ),
    )
    _quantise(c, np.int64(t.NORMED), target, 0, c[t.DIM])


@inner_kernel
def _tiles(c, matrix, rows, num_rows, first, last, output, output_stride, accumulate):
    """Outputs of tiles `first` .. `last` of a matrix, 16 each, for all rows."""
    kind = load_long(matrix + 8 * t.TYPE)
    tile, size, steps = c[t.TILES + kind], c[t.SIZES + kind], load_long(matrix + 8 * t.STEPS)
    tile_bytes = load_long(matrix + 8 * t.TILE_BYTES)
    scale_bytes = load_long(matrix + 8 * t.SCALE_BYTES)
    if load_long(matrix + 8 * t.IS_FLOAT) != 0:
        data, stride = c[rows + t.FLOATS], c[rows + t.FLOATS_STRIDE]
    else:
        data, stride = c[rows + t.QUANTS], c[rows + t.QUANTS_STRIDE]
    planes, planes_stride = c[rows + t.PLANES], c[rows + t.PLANES_STRIDE]
    for index in range(first, min(last, load_long(matrix + 8 * t.NUM_TILES))):
        weights = load_long(matrix + 8 * t.WEIGHTS) + index * tile_bytes
        scales = load_long(matrix + 8 * t.SCALES) + index * scale_bytes
        for row in range(0, num_rows, size):
            call_tile(
                tile,
                (
                    weights,
                    scales,
                    data + row * stride,
                    planes + row * planes_stride,
                    output + row * output_stride + index * 64,
                    steps,
                    stride,
                    planes_stride,
                    c[rows + t.PLANE_BYTES_EACH],
                    output_stride,
                    min(size, num_rows - row),
                    accumulate,
                ),
            )


@inner_kernel
def _tile_maxima(c, first, last, num_rows):
    """The largest of every 16 logits of the head's tiles, while they are in the cache."""
    call_row(
        c[t.OPS + t.TILE_MAXIMA],
        (
            c[t.LOGITS] + 64 * first,
            c[t.LOGITS_STRIDE],
            num_rows,
            min(last, load_long(c[t.HEAD_MATRIX] + 8 * t.NUM_TILES)) - first,
            c[t.VOCAB_SIZE] - 16 * first,
            c[t.MAXIMA] + 4 * first,
            c[t.MAXIMA_STRIDE],
        ),
    )


@inner_kernel
def _unit_bytes(matrix):
    """Bytes of weights that a unit of a matrix goes through."""
    tile = load_long(matrix + 8 * t.TILE_BYTES) + load_long(matrix + 8 * t.SCALE_BYTES)
    return UNIT * tile


@inner_kernel
def _multiply(c, thread, matrix, rows, num_rows, output, output_stride, accumulate):
    """This thread's share of output[n] = rows[n] x matrix."""
    count = (load_long(matrix + 8 * t.NUM_TILES) + UNIT - 1) // UNIT
    num_bytes = _unit_bytes(matrix)
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        first, last = unit * UNIT, unit * UNIT + UNIT
        _tiles(c, matrix, rows, num_rows, first, last, output, output_stride, accumulate)
        if output == c[t.LOGITS]:
            _tile_maxima(c, first, last, num_rows)
        unit = next_unit(c, thread, unit, count, num_bytes)


@inner_kernel
def _gate_up(c, thread, layer, num_rows):
    """This thread's share of silu(gate) * up, quantised."""
    gate = c[t.MATRICES] + (layer * 7 + t.WGATE) * 64
    up, rows = gate + 64, np.int64(t.NORMED)
    count = (load_long(gate + 8 * t.NUM_TILES) + UNIT - 1) // UNIT
    num_bytes = _unit_bytes(gate) + _unit_bytes(up)
    floats, stride = c[t.GATED + t.FLOATS], c[t.GATED + t.FLOATS_STRIDE]
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        first, last = unit * UNIT, unit * UNIT + UNIT
        _tiles(c, gate, rows, num_rows, first, last, floats, stride, 0)
        _tiles(c, up, rows, num_rows, first, last, c[t.UP], c[t.UP_STRIDE], 0)
        width = min(16 * UNIT, c[t.FFN_DIM] - 16 * first)
        for row in range(num_rows):
            place = floats + row * stride + 64 * first
            other = c[t.UP] + row * c[t.UP_STRIDE] + 64 * first
            call_row(c[t.OPS + t.GATE], (place, other, place, (width + 15) >> 4))
            _quantise(c, np.int64(t.GATED), row, 16 * first, width)
        unit = next_unit(c, thread, unit, count, num_bytes)


@inner_kernel
def _rotate_pairs(c, row, cosines, sines):
    """RoPE in place on the leading dimensions of one head, for widths that fill no vectors."""
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
def _rotate(c, node, row, target, factor_bits):
    """RoPE of one head at `row`, multiplied by a factor, to `target` (which may be `row`)."""
    cosines, sines = c[t.COSINES] + node * c[t.ANGLE_STRIDE], c[t.SINES] + node * c[t.ANGLE_STRIDE]
    half, after = c[t.ROPE_HALF], c[t.HEAD_DIM] - 2 * c[t.ROPE_HALF]
    if (half | after) & 15 == 0:
        rotate = c[t.OPS + t.ROTATE]
        call_row(rotate, (row, cosines, sines, target, half >> 4, after >> 4, factor_bits))
        return
    _rotate_pairs(c, row, cosines, sines)
    factor = bits_to_float(np.int32(factor_bits))
    for i in range(c[t.HEAD_DIM]):
        store_float(target + 4 * i, load_float(row + 4 * i) * factor)


@inner_kernel
def _add(target, source, count):
    """target[count] += source[count], f32 at two addresses."""
    for i in range(count):
        store_float(target + 4 * i, load_float(target + 4 * i) + load_float(source + 4 * i))


@inner_kernel
def _refine(c, layer, row, bias, which):
    """Bias and norm of one head in place (Qwen); which is 0 for queries, 1 for keys."""
    if c[t.BIASED] != 0:
        _add(row, c[t.BIASES] + bias, c[t.HEAD_DIM])
    if c[t.QK_NORM] != 0:
        gain = c[t.HEAD_NORMS] + (layer * 2 + which) * c[t.HEAD_DIM] * 4
        call_row(c[t.OPS + t.NORM], (row, gain, row, c[t.HEAD_DIM] >> 4, c[t.EPSILON_BITS]))


@inner_kernel
def _place_query(c, layer, head, node):
    """One head's query, from QUERY to ROTATED."""
    dim, group = c[t.HEAD_DIM], c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    row = c[t.QUERY] + node * c[t.QUERY_STRIDE] + 4 * head * dim
    biases = layer * (c[t.NUM_HEADS] + 2 * c[t.NUM_KV_HEADS])
    _refine(c, layer, row, (biases + head) * dim * 4, np.int64(0))
    _rotate(c, node, row, row, c[t.QUERY_SCALE_BITS])
    put_query(c, head // group, first_query(c, node) + head % group, row)


@inner_kernel
def _place_key(c, layer, head, node):
    """One head's key and value, from KEY and VALUE to the arena."""
    dim = c[t.HEAD_DIM]
    key = c[t.KEY] + node * c[t.KEY_STRIDE] + 4 * head * dim
    value = c[t.VALUE] + node * c[t.VALUE_STRIDE] + 4 * head * dim
    biases = layer * (c[t.NUM_HEADS] + 2 * c[t.NUM_KV_HEADS]) + c[t.NUM_HEADS]
    _refine(c, layer, key, (biases + head) * dim * 4, np.int64(1))
    if c[t.BIASED] != 0:
        _add(value, c[t.BIASES] + (biases + c[t.NUM_KV_HEADS] + head) * dim * 4, dim)
    _rotate(c, node, key, key, np.int64(0x3F800000))  # the bits of 1.0
    blocks = part_entry(c, node_entry(c, node, t.PART), t.BLOCKS)
    store_kv(c, blocks, layer, head, node_entry(c, node, t.SLOT), key, value)


@inner_kernel
def _project(c, thread, layer, num_rows):
    """This thread's share of queries, keys and values: whole heads, rotated and put in place."""
    base, rows = c[t.MATRICES] + layer * 7 * 64, np.int64(t.NORMED)
    heads, tiles = c[t.UNIT_HEADS], c[t.UNIT_HEADS] * c[t.HEAD_DIM] + 15 >> 4
    num_queries = (c[t.NUM_HEADS] + heads - 1) // heads
    count = num_queries + (c[t.NUM_KV_HEADS] + heads - 1) // heads
    num_bytes = _unit_bytes(base) * tiles // UNIT
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        if unit < num_queries:
            first, last = unit * tiles, unit * tiles + tiles
            _tiles(c, base, rows, num_rows, first, last, c[t.QUERY], c[t.QUERY_STRIDE], 0)
            for head in range(unit * heads, min(unit * heads + heads, c[t.NUM_HEADS])):
                for node in range(num_rows):
                    _place_query(c, layer, head, node)
        else:
            own = unit - num_queries
            first, last = own * tiles, own * tiles + tiles
            _tiles(c, base + 64, rows, num_rows, first, last, c[t.KEY], c[t.KEY_STRIDE], 0)
            _tiles(c, base + 128, rows, num_rows, first, last, c[t.VALUE], c[t.VALUE_STRIDE], 0)
            for head in range(own * heads, min(own * heads + heads, c[t.NUM_KV_HEADS])):
                for node in range(num_rows):
                    _place_key(c, layer, head, node)
        unit = next_unit(c, thread, unit, count, num_bytes)


@inner_kernel
def _angles(c, thread, threads, num_nodes):
    """Cosines and sines of the nodes' positions, f32 [n, rope_dim / 2]."""
    for node in range(thread, num_nodes, threads):
        position = np.float64(node_entry(c, node, t.POSITION))
        for i in range(c[t.ROPE_HALF]):
            angle = position * load_double(c[t.FREQUENCIES] + 8 * i)
            place = node * c[t.ANGLE_STRIDE] + 4 * i
            store_float(c[t.COSINES] + place, np.float32(np.cos(angle)))
            store_float(c[t.SINES] + place, np.float32(np.sin(angle)))


@inner_kernel
def _norm(c, thread, threads, gain, first, num_rows):
    """This thread's share of NORMED, from rows `first` .. of the residual stream."""
    for row in range(thread, num_rows, threads):
        _norm_row(c, c[t.STREAM] + (first + row) * c[t.STREAM_STRIDE], gain, row)
    barrier(c, thread, threads)


@inner_kernel
def _adapt(c, thread, threads, num_rows):
    """NORMED from rows of the residual stream as the adapter says the last layer would leave it."""
    up, stride = c[t.UP], c[t.UP_STRIDE]
    _norm(c, thread, threads, c[t.ADAPTER_NORM], c[t.FIRST_ROW], num_rows)
    _multiply(c, thread, c[t.ADAPTER], np.int64(t.NORMED), num_rows, up, stride, 0)
    barrier(c, thread, threads)
    for row in range(thread, num_rows, threads):
        _norm_row(c, up + row * stride, c[t.LAST_NORM_WEIGHT], row)
    barrier(c, thread, threads)


@inner_kernel
def _layer(c, thread, threads, layer, num_rows):
    """One layer, in place on the residual stream."""
    base = c[t.MATRICES] + layer * 7 * 64
    gain = c[t.NORMS] + layer * 2 * c[t.DIM] * 4
    stream, stride = c[t.STREAM], c[t.STREAM_STRIDE]
    attended, gated = np.int64(t.ATTENDED), np.int64(t.GATED)
    _norm(c, thread, threads, gain, np.int64(0), num_rows)
    _project(c, thread, layer, num_rows)
    barrier(c, thread, threads)
    attend_share(c, thread, layer, num_rows)
    barrier(c, thread, threads)
    for row in range(thread, num_rows, threads):
        finish_node(c, row, num_rows)
        _quantise(c, attended, row, 0, c[t.NUM_HEADS] * c[t.HEAD_DIM])
    barrier(c, thread, threads)
    _multiply(c, thread, base + 64 * t.WO, attended, num_rows, stream, stride, 1)
    barrier(c, thread, threads)
    _norm(c, thread, threads, gain + c[t.DIM] * 4, np.int64(0), num_rows)
    _gate_up(c, thread, layer, num_rows)
    barrier(c, thread, threads)
    _multiply(c, thread, base + 64 * t.WDOWN, gated, num_rows, stream, stride, 1)
    barrier(c, thread, threads)


@inner_kernel
def _pass(c, thread, threads):
    """This thread's share of the job in the table, which is read before the last barrier: past it,
    thread 0 may be at the next job.
    """
    num_rows, rows, with_head = c[t.NUM_ROWS], np.int64(t.NORMED), c[t.WITH_HEAD]
    if c[t.NUM_LAYERS] > 0:
        _angles(c, thread, threads, num_rows)
        for layer in range(c[t.FIRST_LAYER], c[t.FIRST_LAYER] + c[t.NUM_LAYERS]):
            _layer(c, thread, threads, layer, num_rows)
    if with_head != 0:
        if c[t.ADAPTER] != 0:
            _adapt(c, thread, threads, num_rows)
        else:
            _norm(c, thread, threads, c[t.LAST_NORM_WEIGHT], c[t.FIRST_ROW], num_rows)
        logits, stride = c[t.LOGITS], c[t.LOGITS_STRIDE]
        _multiply(c, thread, c[t.HEAD_MATRIX], rows, num_rows, logits, stride, 0)
        barrier(c, thread, threads)


@kernel
def run(c, num_layers, first, num_rows, with_head, threads):
    """Run `num_layers` layers from the `first` on over the residual stream [n, dim], in place; keys
    and values go to the arena. With the head: and then the logits [rows, vocab] of these rows, or
    with no layers of the rows from `first` on.

    Called by thread 0; the team's other threads are in `serve`.
    """
    c[t.NUM_LAYERS], c[t.NUM_ROWS] = num_layers, num_rows
    c[t.FIRST_LAYER], c[t.FIRST_ROW] = first, np.int64(0) if num_layers > 0 else first
    c[t.WITH_HEAD] = with_head
    share_out(c, threads)
    start_pass(c, threads)
    _pass(c, np.int64(0), threads)


@kernel
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
