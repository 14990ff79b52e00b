"""Grouped-query attention of tree nodes over the cached prefix and their own ancestors.

Keys and values of node i lie at slot P + i of the arena, P being the committed length. A node sees
the slots 0 .. P + run - 1, where `run` counts the leading ancestors that stand in a row (all of
them, in a chain), and then its other ancestors (`extra`), always in order of position: the order
plain decoding would see them in.

Rows are the queries that share a key head: node 0's group of heads, node 1's, ... `spans.py` tells
how the work is cut; with few nodes, threads take spans and `finish_node` puts them together in the
next stage, with many they take rows and do both.
"""

from __future__ import annotations

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.attend_span import attend_span
from edgespec.backends.native.kernels.intrinsics import (
    call_row,
    load_float,
    load_int,
    store_float,
)
from edgespec.backends.native.kernels.spans import ROW_BLOCK, ROWS_PER_ITEM, SPAN
from edgespec.backends.native.kernels.team import first_unit, next_unit
from edgespec.jit import inner_kernel, kernel


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
def put_query(c, head, row, query):
    """Put one query, f32 [head_dim] at an address, into row `row` of its key head."""
    place = c[t.ROTATED] + head * c[t.ROTATED_HEAD] + row // ROW_BLOCK * c[t.ROTATED_BLOCK]
    place += 4 * (row % ROW_BLOCK)
    if c[t.KV_INT8] != 0:
        call_row(c[t.ATTENTION + t.PUT_QUERY], query, place, c[t.HEAD_DIM], 0, 0, 0, 0, 0)
        return
    for i in range(c[t.HEAD_DIM]):
        store_float(place + 4 * ROW_BLOCK * i, load_float(query + 4 * i))


@inner_kernel
def _combine(c, head, row, num_rows, region_row):
    """Put the spans of rows together that belong to one node, into ATTENDED."""
    group = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    node, member = row // group, row % group
    output = c[t.ATTENDED + t.FLOATS] + node * c[t.ATTENDED + t.FLOATS_STRIDE]
    seen = c[t.LENGTH] + load_int(c[t.DEPTH] + 4 * node) + 1
    call_row(
        c[t.ATTENTION + t.COMBINE],
        c[t.MIXED] + region_row * c[t.MIXED_STRIDE],
        c[t.MIXED_STRIDE],
        c[t.FACTS] + region_row * c[t.FACTS_STRIDE],
        c[t.FACTS_STRIDE],
        (seen + SPAN - 1) // SPAN,
        output + 4 * (head * group + member) * c[t.HEAD_DIM],
        c[t.HEAD_DIM],
        num_rows,
    )


@inner_kernel
def finish_node(c, node, num_nodes):
    """Fill the node's row of ATTENDED, when threads shared spans."""
    if num_nodes > c[t.SPLIT_NODES]:
        return
    group = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    for head in range(c[t.NUM_KV_HEADS]):
        _combine(c, head, node * group, group, head * c[t.SPLIT_ROWS] + node * group)


@inner_kernel
def attend_share(c, thread, layer, num_nodes):
    """This thread's share of attention: spans of all rows when nodes are few, else rows."""
    num_rows = num_nodes * (c[t.NUM_HEADS] // c[t.NUM_KV_HEADS])
    spans = (c[t.LENGTH] + num_nodes + SPAN - 1) // SPAN
    span_bytes = SPAN // c[t.BLOCK] * c[t.HEAD_BYTES]
    per_head = (num_rows + ROWS_PER_ITEM - 1) // ROWS_PER_ITEM
    if num_nodes <= c[t.SPLIT_NODES]:
        count = c[t.NUM_KV_HEADS] * spans
        unit = first_unit(c, thread, count, span_bytes)
        while unit < count:
            _attend_span(c, thread, layer, unit, spans, num_rows)
            unit = next_unit(c, thread, unit, count, span_bytes)
        return
    count = c[t.NUM_KV_HEADS] * per_head
    unit = first_unit(c, thread, count, spans * span_bytes)
    while unit < count:
        first = unit % per_head * ROWS_PER_ITEM
        rows = min(ROWS_PER_ITEM, num_rows - first)
        _attend_rows(c, thread, layer, unit // per_head, first, rows, spans)
        unit = next_unit(c, thread, unit, count, spans * span_bytes)


@inner_kernel
def _attend_span(c, thread, layer, unit, spans, num_rows):
    """One span of all rows of a key head, the unit being their number; the next is prepared."""
    head, span, turns = unit // spans, unit % spans, (num_rows + ROW_BLOCK - 1) // ROW_BLOCK
    next_head, next_span = (unit + 1) // spans % c[t.NUM_KV_HEADS], (unit + 1) % spans
    for turn in range(turns):
        first = turn * ROW_BLOCK
        rows = (first, min(ROW_BLOCK, num_rows - first), head * c[t.SPLIT_ROWS] + first)
        attend_span(c, thread, layer, head, span, rows, (turn, turns, next_head, next_span))


@inner_kernel
def _attend_rows(c, thread, layer, head, begin, num_rows, spans):
    """All spans of some rows of a key head, in the thread's own region, and what they come to."""
    group, region = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS], thread * ROWS_PER_ITEM
    turns = (num_rows + ROW_BLOCK - 1) // ROW_BLOCK
    for span in range(spans):
        for turn in range(turns):
            done = turn * ROW_BLOCK
            rows = (begin + done, min(ROW_BLOCK, num_rows - done), region + done)
            attend_span(c, thread, layer, head, span, rows, (turn, turns, head, span + 1))
    done = 0
    while done < num_rows:
        row = begin + done
        same = min((row // group + 1) * group - row, num_rows - done)
        _combine(c, head, row, same, region + done)
        done += same
