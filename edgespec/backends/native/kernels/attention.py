"""Grouped-query attention of tree nodes over the cached prefix and their own ancestors.

Keys and values of node i lie at slot P + i of the arena, P being the committed length. A node sees
the slots 0 .. P + run - 1, where `run` counts the leading ancestors that stand in a row (all of
them, in a chain), and then its other ancestors (`extra`), always in order of position: the order
plain decoding would see them in.

Rows are the queries that share a key head: node 0's group of heads, node 1's, ... A block of up to
16 rows is one item of work; keys and values are loaded once for several rows.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.intrinsics import (
    call_row,
    float_to_half,
    load_float,
    load_int,
    load_long,
    load_short,
    store_float,
    store_short,
)
from edgespec.jit import inner_kernel, kernel

ROWS_PER_ITEM = 16


@kernel
def describe_tree(parents, depth, run, extra_start, extra):
    """Fill depth [n], run [n], extra_start [n + 1] and extra [n * n] from parents [n]."""
    count = 0
    for node in range(parents.shape[0]):
        parent = parents[node]
        extra_start[node] = count
        if parent < 0:
            depth[node], run[node] = 0, 1
            continue
        depth[node] = depth[parent] + 1
        if parent == node - 1 and run[parent] == node:
            run[node] = node + 1
            continue
        run[node] = run[parent]
        for place in range(extra_start[parent], extra_start[parent + 1]):
            extra[count] = extra[place]
            count += 1
        extra[count] = node
        count += 1
        extra_start[node + 1] = count
    extra_start[parents.shape[0]] = count


@inner_kernel
def key_address(c, layer, head, slot):
    """Where the 16-key tile of a slot starts; a block holds [layer, key or value, head] planes."""
    plane = (layer * 2 * c[t.NUM_KV_HEADS] + head) * c[t.PLANE_BYTES]
    block, within = slot // c[t.BLOCK], slot % c[t.BLOCK]
    return load_long(c[t.BLOCKS] + 8 * block) + plane + (within >> 4) * c[t.KEY_TILE_BYTES]


@inner_kernel
def value_address(c, layer, head, slot):
    """Where the value row of a slot is."""
    plane = ((layer * 2 + 1) * c[t.NUM_KV_HEADS] + head) * c[t.PLANE_BYTES]
    block, within = slot // c[t.BLOCK], slot % c[t.BLOCK]
    return load_long(c[t.BLOCKS] + 8 * block) + plane + within * c[t.VALUE_BYTES]


@inner_kernel
def store_kv(c, layer, head, slot, keys, values):
    """Write one position's keys and values, f32 [head_dim] at two addresses, as half precision."""
    column = key_address(c, layer, head, slot) + 2 * (slot & 15)
    row = value_address(c, layer, head, slot)
    for i in range(c[t.HEAD_DIM]):
        store_short(column + 32 * i, float_to_half(load_float(keys + 4 * i)))
        store_short(row + 2 * i, float_to_half(load_float(values + 4 * i)))


@kernel
def move_kv(c, num_layers, source, target):
    """Copy one position's keys and values, all layers and heads, from one slot to another."""
    for layer in range(num_layers):
        for head in range(c[t.NUM_KV_HEADS]):
            old = key_address(c, layer, head, source) + 2 * (source & 15)
            new = key_address(c, layer, head, target) + 2 * (target & 15)
            old_row = value_address(c, layer, head, source)
            new_row = value_address(c, layer, head, target)
            for i in range(c[t.HEAD_DIM]):
                store_short(new + 32 * i, load_short(old + 32 * i))
                store_short(new_row + 2 * i, load_short(old_row + 2 * i))


@inner_kernel
def _score(c, layer, head, rows, num_rows, num_slots, scores):
    """scores[row, slot] = query . key for all slots of all rows."""
    for slot in range(0, num_slots, 16):
        keys = key_address(c, layer, head, slot)
        row = 0
        for step in range(4):
            size = 8 >> step
            while num_rows - row >= size:
                call_row(
                    c[t.OPS + t.SCORE + step],
                    rows + row * c[t.ROTATED_STRIDE],
                    c[t.ROTATED_STRIDE],
                    keys,
                    c[t.HEAD_DIM],
                    scores + row * c[t.SCORES_STRIDE] + 4 * slot,
                    c[t.SCORES_STRIDE],
                    0,
                    0,
                )
                row += size


@inner_kernel
def _mix(c, layer, head, first, last, place, scores, mixed, num_rows):
    """Add the values of slots first .. last - 1, weighted by scores[row, place ...], to mixed."""
    while first < last:
        count = min(last - first, c[t.BLOCK] - first % c[t.BLOCK])
        values = value_address(c, layer, head, first)
        row = 0
        for step in range(4):
            size = 8 >> step
            while num_rows - row >= size:
                call_row(
                    c[t.OPS + t.MIX + step],
                    scores + row * c[t.SCORES_STRIDE] + 4 * place,
                    c[t.SCORES_STRIDE],
                    values,
                    c[t.VALUE_BYTES],
                    count,
                    mixed + row * c[t.MIXED_STRIDE],
                    c[t.MIXED_STRIDE],
                    c[t.HEAD_PAD] >> 4,
                )
                row += size
        first += count
        place += count


@inner_kernel
def _gather(c, node, scores):
    """Move the scores of a node's extra ancestors behind its run; returns how many it sees."""
    count = c[t.LENGTH] + load_int(c[t.RUN] + 4 * node)
    for place in range(
        load_int(c[t.EXTRA_START] + 4 * node), load_int(c[t.EXTRA_START] + 4 * node + 4)
    ):
        slot = c[t.LENGTH] + load_int(c[t.EXTRA] + 4 * place)
        store_float(scores + 4 * count, load_float(scores + 4 * slot))
        count += 1
    return count


@inner_kernel
def _mix_own(c, layer, head, node, common, scores, mixed, num_rows):
    """Add what a node sees beyond the slots all rows of its item share."""
    place = c[t.LENGTH] + load_int(c[t.RUN] + 4 * node)
    _mix(c, layer, head, common, place, common, scores, mixed, num_rows)
    for index in range(
        load_int(c[t.EXTRA_START] + 4 * node), load_int(c[t.EXTRA_START] + 4 * node + 4)
    ):
        slot = c[t.LENGTH] + load_int(c[t.EXTRA] + 4 * index)
        _mix(c, layer, head, slot, slot + 1, place, scores, mixed, num_rows)
        place += 1


@inner_kernel
def attend(c, thread, layer, head, first_row, num_rows):
    """One item: rows first_row .. of one key head, from the rotated queries to ATTENDED."""
    group = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    rows = c[t.ROTATED] + head * c[t.ROTATED_HEAD] + first_row * c[t.ROTATED_STRIDE]
    scores = c[t.SCORES] + thread * c[t.SCORES_THREAD]
    mixed = c[t.MIXED] + thread * c[t.MIXED_THREAD]
    inverse = c[t.INVERSE] + thread * c[t.INVERSE_THREAD]
    first_node, last_node = first_row // group, (first_row + num_rows - 1) // group
    _score(c, layer, head, rows, num_rows, c[t.LENGTH] + last_node + 1, scores)
    common = c[t.LENGTH] + load_int(c[t.RUN] + 4 * first_node)
    for node in range(first_node, last_node + 1):
        common = min(common, c[t.LENGTH] + load_int(c[t.RUN] + 4 * node))
    for row in range(num_rows):
        own = scores + row * c[t.SCORES_STRIDE]
        count = _gather(c, (first_row + row) // group, own)
        padded = (count + 15) & ~15
        for place in range(count, padded):
            store_float(own + 4 * place, np.float32(-np.inf))
        call_row(c[t.OPS + t.SOFTMAX], own, padded >> 4, inverse + 4 * row, 0, 0, 0, 0, 0)
        for i in range(c[t.HEAD_PAD]):
            store_float(mixed + row * c[t.MIXED_STRIDE] + 4 * i, np.float32(0.0))
    zero = np.int64(0)
    _mix(c, layer, head, zero, common, zero, scores, mixed, num_rows)
    row = 0
    while row < num_rows:
        node = (first_row + row) // group
        same = min((node + 1) * group - first_row, num_rows) - row
        own, sums = scores + row * c[t.SCORES_STRIDE], mixed + row * c[t.MIXED_STRIDE]
        _mix_own(c, layer, head, node, common, own, sums, same)
        row += same
    for row in range(num_rows):
        node, member = (first_row + row) // group, (first_row + row) % group
        output = c[t.ATTENDED + t.FLOATS] + node * c[t.ATTENDED + t.FLOATS_STRIDE]
        output += 4 * (head * group + member) * c[t.HEAD_DIM]
        scale = load_float(inverse + 4 * row)
        for i in range(c[t.HEAD_DIM]):
            value = load_float(mixed + row * c[t.MIXED_STRIDE] + 4 * i)
            store_float(output + 4 * i, value * scale)


@inner_kernel
def attend_share(c, thread, threads, layer, num_nodes):
    """This thread's items of attention, dealt out in turn."""
    num_rows = num_nodes * (c[t.NUM_HEADS] // c[t.NUM_KV_HEADS])
    size = min(ROWS_PER_ITEM, num_rows)
    while size > 1 and c[t.NUM_KV_HEADS] * ((num_rows + size - 1) // size) < threads:
        size = (size + 1) // 2
    per_head = (num_rows + size - 1) // size
    for item in range(thread, c[t.NUM_KV_HEADS] * per_head, threads):
        first = item % per_head * size
        attend(c, thread, layer, item // per_head, first, min(size, num_rows - first))
