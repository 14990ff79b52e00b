"""Grouped-query attention of tree nodes over the cached prefix and their own ancestors.

A pass has parts: nodes of trees that belong to different texts, one after the other. Keys and
values of a node lie in a slot of its text's blocks, past the P committed ones: node i of a tree in
slot P + i, unless it has one from an earlier partial pass; the root has slot P, and a child's slot
is always past its parent's. A node sees the slots 0 .. run - 1, the committed ones and the leading
ancestors that stand in a row (all of them, in a chain), and then its other ancestors (`extra`),
always in order of position: the order plain decoding would see them in.

Rows are the queries that share a key head: node 0's group of heads, node 1's, ... `spans.py` tells
how the work is cut; with few nodes, threads take spans and `finish_node` puts them together in the
next stage, with many they take rows and do both. A part's rows start a block of rows, so that the
rows of a block see the same keys.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.attention.attend_span import (
    attend_span,
    first_seen,
    value_pad,
)
from edgespec.backends.native.kernels.attention.spans import ROW_BLOCK, ROWS_PER_ITEM, SPAN
from edgespec.backends.native.kernels.codegen.intrinsics import call_row, load_float, store_float
from edgespec.backends.native.kernels.kv.places import node_entry, part_entry, turn_head
from edgespec.backends.native.kernels.work_sharing import first_unit, next_unit
from edgespec.system.jit import inner_kernel, kernel


@kernel(
    "int16[:]",
    "int32[:]",
    "int32[:]",
    "int64",
    "int64",
    "int64",
    "int32[:,:]",
    "int32[:]",
    result="int64",
)
def describe_tree(parents, slots, wanted, part, first, length, nodes, extra):
    """Fill rows `first` .. of `nodes` int32 [rows + 1, columns] and `extra` int32 [rows * n] with
    those of a tree's nodes that are `wanted`, in this order; returns where their slots end.

    parents [n] are the whole tree's, whose root stands at position `length` of its part's text;
    slots int32 [n] are counted from there on.
    """
    count = nodes[first, t.EXTRA_START] if first > 0 else 0
    end = 0
    for row in range(wanted.shape[0]):
        node = wanted[row]
        own, parent, slot = nodes[first + row], parents[node], slots[node]
        own[t.EXTRA_START], own[t.PART], own[t.SLOT] = count, part, length + slot
        end = max(end, length + slot + 1)
        if row > 0 and wanted[row - 1] == parent and nodes[first + row - 1, t.RUN] == length + slot:
            own[t.POSITION] = own[t.RUN] = length + slot  # in a row with its parent, which was last
            own[t.RUN] += 1
            continue
        depth, above = 0, parent
        while above >= 0:
            depth, above = depth + 1, parents[above]
        own[t.POSITION] = length + depth
        above, place = node, depth
        while slots[above] != place:  # the root's is 0
            above, place = parents[above], place - 1
        own[t.RUN] = length + place + 1
        above = node
        for back in range(depth - place):
            extra[count + depth - place - 1 - back] = length + slots[above]
            above = parents[above]
        count += depth - place
    nodes[first + wanted.shape[0], t.EXTRA_START] = count
    return end


@kernel(
    "int64[:]",
    "int16[:]",
    "int32[:]",
    "int32[:]",
    "int64",
    "int64",
    "int64[:]",
    "int32[:,:]",
    "int32[:]",
    "int64[:,:]",
)
def describe_part(c, parents, slots, wanted, part, length, addresses, nodes, extra, parts):
    """Fill the row `part` of `parts` int64 [parts + 1, columns], whose rows before it are filled,
    and its nodes' as `describe_tree` does; make it the last part of the pass. `addresses` int64 are
    of its text's blocks.
    """
    if part == 0:
        parts[0, t.FIRST_NODE] = parts[0, t.FIRST_QUERY] = 0
    own, after, first = parts[part], parts[part + 1], parts[part, t.FIRST_NODE]
    own[t.END] = describe_tree(parents, slots, wanted, part, first, length, nodes, extra)
    own[t.LENGTH], own[t.BLOCKS] = length, addresses.ctypes.data
    group = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    blocks = (wanted.shape[0] * group + ROW_BLOCK - 1) // ROW_BLOCK
    after[t.FIRST_NODE] = first + wanted.shape[0]
    after[t.FIRST_QUERY] = own[t.FIRST_QUERY] + blocks * ROW_BLOCK
    c[t.NUM_PARTS] = part + 1


@inner_kernel
def first_query(c, node):
    """The first row of a node's queries, among those of each key head."""
    part, group = node_entry(c, node, t.PART), c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    return part_entry(c, part, t.FIRST_QUERY) + (node - part_entry(c, part, t.FIRST_NODE)) * group


@inner_kernel
def put_query(c, head, row, query):
    """Put one query, f32 [head_dim] at an address, into row `row` of its key head."""
    place = c[t.ROTATED] + head * c[t.ROTATED_HEAD] + row // ROW_BLOCK * c[t.ROTATED_BLOCK]
    place += c[t.QUERY_ROW] * (row % ROW_BLOCK)
    turn_head(c, query)
    if c[t.KV_SCALED] != 0:
        call_row(c[t.ATTENTION + t.PUT_QUERY], (query, place, c[t.HEAD_DIM]))
        return
    for i in range(c[t.HEAD_DIM]):
        store_float(place + c[t.QUERY_STEP] * i, load_float(query + 4 * i))


@inner_kernel
def _add_sinks(c, sinks, num_rows, mixed, facts):
    """One more span for each row, whose score is its head's sink and whose values are zero; all are
    f32 at addresses, `sinks` [rows].
    """
    part = c[t.FACTS_STRIDE] // 3
    for row in range(num_rows):
        place = facts + row * c[t.FACTS_STRIDE]
        store_float(place, load_float(sinks + 4 * row))
        store_float(place + part, np.float32(1.0))
        store_float(place + 2 * part, np.float32(0.0))
        for i in range(value_pad(c)):
            store_float(mixed + row * c[t.MIXED_STRIDE] + 4 * i, np.float32(0.0))


@inner_kernel
def _combine(c, head, node, member, num_rows, region_row, sinks):
    """Put the spans of rows together that belong to one node, from one of its group's members on,
    into ATTENDED.
    """
    group = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    output = c[t.ATTENDED + t.FLOATS] + node * c[t.ATTENDED + t.FLOATS_STRIDE]
    output += 4 * (head * group + member) * c[t.VALUE_DIM]
    position = node_entry(c, node, t.POSITION)
    begin = first_seen(c, position) // SPAN
    spans = (position + SPAN) // SPAN - begin
    mixed = c[t.MIXED] + region_row * c[t.MIXED_STRIDE] + 4 * value_pad(c) * begin
    facts = c[t.FACTS] + region_row * c[t.FACTS_STRIDE] + 4 * begin
    if sinks != 0:
        own = sinks + 4 * (head * group + member)
        _add_sinks(c, own, num_rows, mixed + 4 * value_pad(c) * spans, facts + 4 * spans)
        spans += 1
    call_row(
        c[t.ATTENTION + t.COMBINE],
        (
            mixed,
            c[t.MIXED_STRIDE],
            facts,
            c[t.FACTS_STRIDE],
            spans,
            output,
            c[t.VALUE_DIM],
            num_rows,
        ),
    )
    for row in range(num_rows):
        turn_head(c, output + 4 * row * c[t.VALUE_DIM])


@inner_kernel
def finish_node(c, node, num_nodes, sinks):
    """Fill the node's row of ATTENDED, when threads shared spans."""
    if num_nodes > c[t.SPLIT_NODES]:
        return
    group, row = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS], first_query(c, node)
    for head in range(c[t.NUM_KV_HEADS]):
        _combine(c, head, node, np.int64(0), group, head * c[t.SPLIT_ROWS] + row, sinks)


@inner_kernel
def _part_nodes(c, part):
    return part_entry(c, part + 1, t.FIRST_NODE) - part_entry(c, part, t.FIRST_NODE)


@inner_kernel
def _first_span(c, part):
    """The first span that a node of the part sees: those before are out of every window."""
    return first_seen(c, part_entry(c, part, t.LENGTH)) // SPAN


@inner_kernel
def _num_spans(c, part):
    return (part_entry(c, part, t.END) + SPAN - 1) // SPAN - _first_span(c, part)


@inner_kernel
def _num_units(c, part, by_span):
    """Units of a part: spans of all its key heads, or so many rows of them."""
    if by_span:
        return c[t.NUM_KV_HEADS] * _num_spans(c, part)
    num_rows = _part_nodes(c, part) * (c[t.NUM_HEADS] // c[t.NUM_KV_HEADS])
    return c[t.NUM_KV_HEADS] * ((num_rows + ROWS_PER_ITEM - 1) // ROWS_PER_ITEM)


@inner_kernel
def attend_share(c, thread, layer, sinks, num_nodes):
    """This thread's share of attention: spans of all rows when nodes are few, else rows."""
    by_span, count, spans = num_nodes <= c[t.SPLIT_NODES], 0, 0
    for part in range(c[t.NUM_PARTS]):
        count += _num_units(c, part, by_span)
        spans += _num_spans(c, part)
    num_bytes = SPAN // c[t.BLOCK] * c[t.HEAD_BYTES]
    if not by_span:
        num_bytes = num_bytes * spans // max(c[t.NUM_PARTS], 1)
    unit = first_unit(c, thread, count, num_bytes)
    while unit < count:
        part, own = 0, unit
        while own >= _num_units(c, part, by_span):
            own -= _num_units(c, part, by_span)
            part += 1
        if by_span:
            _attend_span(c, thread, layer, part, own)
        else:
            _attend_rows(c, thread, layer, sinks, part, own)
        unit = next_unit(c, thread, unit, count, num_bytes)


@inner_kernel
def _attend_span(c, thread, layer, part, unit):
    """One span of all rows of a key head, the unit being their number; the next is prepared."""
    num_rows = _part_nodes(c, part) * (c[t.NUM_HEADS] // c[t.NUM_KV_HEADS])
    spans, turns = _num_spans(c, part), (num_rows + ROW_BLOCK - 1) // ROW_BLOCK
    begin = _first_span(c, part)
    head, span = unit // spans, begin + unit % spans
    after = (part, (unit + 1) // spans, begin + (unit + 1) % spans)
    if unit + 1 == c[t.NUM_KV_HEADS] * spans:
        other = (part + 1) % c[t.NUM_PARTS]
        after = (other, 0, _first_span(c, other))
    region = head * c[t.SPLIT_ROWS] + part_entry(c, part, t.FIRST_QUERY)
    for turn in range(turns):
        first = turn * ROW_BLOCK
        rows = (part, first, min(ROW_BLOCK, num_rows - first), region + first)
        attend_span(c, thread, layer, head, span, rows, (turn, turns, *after))


@inner_kernel
def _attend_rows(c, thread, layer, sinks, part, unit):
    """All spans of some rows of a key head, in the thread's own region, and what they come to."""
    group, region = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS], thread * ROWS_PER_ITEM
    all_rows = _part_nodes(c, part) * group
    per_head = (all_rows + ROWS_PER_ITEM - 1) // ROWS_PER_ITEM
    head, begin = unit // per_head, unit % per_head * ROWS_PER_ITEM
    num_rows = min(ROWS_PER_ITEM, all_rows - begin)
    turns = (num_rows + ROW_BLOCK - 1) // ROW_BLOCK
    begin_span = _first_span(c, part)
    for span in range(begin_span, begin_span + _num_spans(c, part)):
        for turn in range(turns):
            done = turn * ROW_BLOCK
            rows = (part, begin + done, min(ROW_BLOCK, num_rows - done), region + done)
            attend_span(c, thread, layer, head, span, rows, (turn, turns, part, head, span + 1))
    done = 0
    while done < num_rows:
        node, member = (begin + done) // group, (begin + done) % group
        same = min(group - member, num_rows - done)
        node += part_entry(c, part, t.FIRST_NODE)
        _combine(c, head, node, member, same, region + done, sinks)
        done += same
