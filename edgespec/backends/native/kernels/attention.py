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

from edgespec.backends.native.kernels.intrinsics import (
    call_row,
    float_to_half,
    load_short,
    store_short,
)
from edgespec.jit import inner_kernel, kernel

ROWS_PER_ITEM = 16
SOFTMAX, SCORES, MIX = 3, 4, 8
"""Places in the table of row operations; SCORES and MIX are followed by their sizes 8, 4, 2, 1."""


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
def key_address(arena, layer, head, slot):
    """Where the 16-key tile of a slot starts; a block holds [layer, key or value, head] planes."""
    plane = (layer * 2 * arena.num_heads + head) * arena.plane_bytes
    within = slot % arena.block
    return arena.blocks[slot // arena.block] + plane + (within >> 4) * arena.key_tile_bytes


@inner_kernel
def value_address(arena, layer, head, slot):
    """Where the value row of a slot is."""
    plane = ((layer * 2 + 1) * arena.num_heads + head) * arena.plane_bytes
    return arena.blocks[slot // arena.block] + plane + slot % arena.block * arena.value_bytes


@inner_kernel
def store_kv(arena, layer, head, slot, keys, values):
    """Write one position's keys and values [head_dim] f32 as half precision."""
    count = keys.shape[0]
    column = key_address(arena, layer, head, slot) + 2 * (slot & 15)
    row = value_address(arena, layer, head, slot)
    for i in range(count):
        store_short(column + 32 * i, float_to_half(keys[i]))
        store_short(row + 2 * i, float_to_half(values[i]))


@kernel
def move_kv(arena, num_layers, head_dim, source, target):
    """Copy one position's keys and values, all layers and heads, from one slot to another."""
    for layer in range(num_layers):
        for head in range(arena.num_heads):
            old = key_address(arena, layer, head, source) + 2 * (source & 15)
            new = key_address(arena, layer, head, target) + 2 * (target & 15)
            old_row = value_address(arena, layer, head, source)
            new_row = value_address(arena, layer, head, target)
            for i in range(head_dim):
                store_short(new + 32 * i, load_short(old + 32 * i))
                store_short(new_row + 2 * i, load_short(old_row + 2 * i))


@inner_kernel
def _score(ops, arena, layer, head, head_dim, rows, num_rows, num_slots, scores):
    """scores[row, slot] = query . key for all slots of all rows."""
    query_bytes, score_bytes = rows.strides[0], scores.strides[0]
    for slot in range(0, num_slots, 16):
        keys = key_address(arena, layer, head, slot)
        row = 0
        for step in range(4):
            size = 8 >> step
            while num_rows - row >= size:
                call_row(
                    ops[SCORES + step],
                    rows.ctypes.data + row * query_bytes,
                    query_bytes,
                    keys,
                    head_dim,
                    scores.ctypes.data + row * score_bytes + 4 * slot,
                    score_bytes,
                    0,
                    0,
                )
                row += size


@inner_kernel
def _mix(ops, arena, layer, head, first, last, place, vectors, scores, row, num_rows, mixed):
    """mixed[row] += values of slots first .. last - 1, weighted by scores[row, place ...]."""
    while first < last:
        count = min(last - first, arena.block - first % arena.block)
        values = value_address(arena, layer, head, first)
        done = 0
        for step in range(4):
            size = 8 >> step
            while num_rows - done >= size:
                at = row + done
                call_row(
                    ops[MIX + step],
                    scores.ctypes.data + at * scores.strides[0] + 4 * place,
                    scores.strides[0],
                    values,
                    arena.value_bytes,
                    count,
                    mixed.ctypes.data + at * mixed.strides[0],
                    mixed.strides[0],
                    vectors,
                )
                done += size
        first += count
        place += count


@inner_kernel
def attend(
    ops,
    arena,
    tree,
    layer,
    head,
    group,
    head_dim,
    queries,
    first_row,
    num_rows,
    scores,
    mixed,
    inverse,
    output,
):
    """One item: rows first_row .. of one key head, from queries [rows, head_pad] to output [n,
    q_dim].
    """
    length = tree.length
    first_node, last_node = first_row // group, (first_row + num_rows - 1) // group
    rows = queries[first_row : first_row + num_rows]
    num_slots = length + last_node + 1
    _score(ops, arena, layer, head, head_dim, rows, num_rows, num_slots, scores)
    common = tree.run[first_node]
    for node in range(first_node, last_node + 1):
        common = min(common, tree.run[node])
    for row in range(num_rows):
        node = (first_row + row) // group
        count = length + tree.run[node]
        for place in range(tree.extra_start[node], tree.extra_start[node + 1]):
            scores[row, count] = scores[row, length + tree.extra[place]]
            count += 1
        padded = (count + 15) & ~15
        for place in range(count, padded):
            scores[row, place] = -np.inf
        call_row(
            ops[SOFTMAX],
            scores.ctypes.data + row * scores.strides[0],
            padded >> 4,
            inverse.ctypes.data + 4 * row,
            0,
            0,
            0,
            0,
            0,
        )
    mixed[:num_rows] = np.float32(0.0)
    vectors = mixed.shape[1] >> 4
    _mix(ops, arena, layer, head, 0, length + common, 0, vectors, scores, 0, num_rows, mixed)
    row = 0
    while row < num_rows:
        node = (first_row + row) // group
        same = min((node + 1) * group - first_row, num_rows) - row
        reach = length + tree.run[node]
        start = length + common
        _mix(ops, arena, layer, head, start, reach, start, vectors, scores, row, same, mixed)
        for place in range(tree.extra_start[node], tree.extra_start[node + 1]):
            slot = length + tree.extra[place]
            _mix(ops, arena, layer, head, slot, slot + 1, reach, vectors, scores, row, same, mixed)
            reach += 1
        row += same
    for row in range(num_rows):
        node = (first_row + row) // group
        column = (head * group + (first_row + row) % group) * head_dim
        for i in range(head_dim):
            output[node, column + i] = mixed[row, i] * inverse[row]
