"""One span of up to 12 rows of a key head: scores, softmax, mixing.

A place is a position among what a row sees. A slot of its run is its own place; an extra ancestor's
place is before its slot, so scores move up to places for the softmax and their weights return to
slots for mixing, where all other slots weigh zero.

Two tuples: `rows` is (part, first row of it, how many, where in MIXED and FACTS they go); `ahead`
is (turn, turns, part, head, span): the span that comes next, whose memory all turns at this one ask
for together.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.attention.spans import ROW_BLOCK, SCORES_STRIDE, SPAN
from edgespec.backends.native.kernels.codegen.intrinsics import (
    call_row,
    call_tile,
    load_float,
    load_int,
    store_float,
)
from edgespec.backends.native.kernels.kv.places import key_address, node_entry, part_entry
from edgespec.system.jit import inner_kernel

_HIDDEN = np.float32(-1e30)
"""A score that weighs nothing beside any other, and leaves a span of such scores finite."""


@inner_kernel
def _fill(row, first, last, value):
    """row[first .. last - 1] = value, f32 at an address."""
    for place in range(first, last):
        store_float(row + 4 * place, value)


@inner_kernel
def _gather(extra, low, run, places, row):
    """Move a row's numbers of a node's extra ancestors from their slots up to their places."""
    for place in range(run, places):
        slot = load_int(extra + 4 * (place - run)) - low
        store_float(row + 4 * place, load_float(row + 4 * slot))


@inner_kernel
def value_pad(c):
    """Width of a head's values in whole vectors."""
    return (c[t.VALUE_DIM] + 15) & ~15


@inner_kernel
def first_seen(c, position):
    """The first position that one sees, which windows and chunks limit."""
    if c[t.WINDOW] != 0:
        return max(position - c[t.WINDOW] + 1, 0)
    if c[t.CHUNK] != 0:
        return position // c[t.CHUNK] * c[t.CHUNK]
    return np.int64(0)


@inner_kernel
def _softmax(c, node, row, low, width, scales, facts):
    """Scores of `width` slots from `low` on become softmax weights of what the node sees among the
    places of the span, zero for all other slots; the span's maximum and sum go to its facts.

    With scaled values the weights are multiplied by the values' scales.
    """
    own = node_entry(c, node, t.RUN)
    if c[t.SOFTCAP] != 0:
        call_row(c[t.SOFTCAP], (row, row, width >> 4, c[t.SOFTCAP_BITS]))
    places = min(node_entry(c, node, t.POSITION) + 1 - low, SPAN)
    if places <= 0:
        return
    run = max(min(own - low, places), 0)
    extra = c[t.EXTRA] + 4 * (node_entry(c, node, t.EXTRA_START) + max(low - own, 0))
    if run < places:
        _gather(extra, low, run, places, row)
        if c[t.KV_SCALED] != 0:
            for place in range(width):
                store_float(scales + SCORES_STRIDE + 4 * place, load_float(scales + 4 * place))
            scales += SCORES_STRIDE
            _gather(extra, low, run, places, scales)
    hidden = first_seen(c, node_entry(c, node, t.POSITION)) - low
    _fill(row, 0, min(hidden, places), _HIDDEN)
    padded = (places + 15) & ~15
    _fill(row, places, padded, np.float32(-np.inf))
    part, vectors = c[t.FACTS_STRIDE] // 3, padded >> 4
    softmax = c[t.ATTENTION + t.SOFTMAX]
    call_row(softmax, (row, vectors, facts, facts + part, scales, facts + 2 * part))
    _fill(row, padded, width, np.float32(0.0))
    for back in range(places - run):  # weights return to their slots, the last one first
        place = places - 1 - back
        slot = load_int(extra + 4 * (place - run)) - low
        weight = load_float(row + 4 * place)
        store_float(row + 4 * place, np.float32(0.0))
        store_float(row + 4 * slot, weight)


@inner_kernel
def _ahead(c, layer, step, ahead, here):
    """What to ask for meanwhile, and how thinly: the next span's memory, cut into as many parts as
    a power of two of turns has steps of four; `here`, which brings nothing new, in other steps.
    """
    turn, turns, text, head, span = ahead
    share = 0
    while 2 << share <= turns:
        share += 1
    step += 4 * turn
    part = (step << share) // turns
    quarter, within = part >> share, part & ((1 << share) - 1)
    slot = span * SPAN + quarter // 2 * c[t.BLOCK]
    taken = step > 0 and ((step - 1) << share) // turns == part
    if taken or slot >= part_entry(c, text, t.LENGTH):
        return here, share
    place = key_address(c, part_entry(c, text, t.BLOCKS), layer, head, slot)
    place += quarter % 2 * c[t.KEY_BYTES]
    return place + within * (c[t.KEY_SCALES] >> share), share


@inner_kernel
def _score(c, layer, head, rows, low, high, scores, ahead):
    """scores[row, slot - low] = query . key for slots low .. high - 1 of all rows."""
    part, first_row, num_rows, _ = rows
    query = (part_entry(c, part, t.FIRST_QUERY) + first_row) // ROW_BLOCK
    queries = c[t.ROTATED] + head * c[t.ROTATED_HEAD] + query * c[t.ROTATED_BLOCK]
    blocks = part_entry(c, part, t.BLOCKS)
    for slot in range(low, high, c[t.BLOCK]):
        keys = key_address(c, blocks, layer, head, slot)
        there, share = _ahead(c, layer, min((slot - low) // c[t.BLOCK], 1), ahead, keys)
        row = 0
        while row < num_rows:
            count = min(num_rows - row, c[t.ATTENTION + t.SCORE_ROWS])
            call_tile(
                c[t.ATTENTION + t.SCORE + count - 1],
                (
                    queries + c[t.QUERY_ROW] * row,
                    keys,
                    c[t.KEY_TILE_BYTES],
                    (min(high - slot, c[t.BLOCK]) + 15) >> 4,
                    c[t.KEY_STEPS],
                    keys + c[t.KEY_SCALES],
                    scores + row * SCORES_STRIDE + 4 * (slot - low),
                    there,
                    share,
                ),
            )
            row += count
            there = keys


@inner_kernel
def _mix(c, layer, head, rows, low, high, scores, mixed, ahead):
    """Add the values of slots low .. high - 1, by their weights, to the rows of mixed."""
    blocks, num_rows = part_entry(c, rows[0], t.BLOCKS), rows[2]
    for slot in range(low, high, c[t.BLOCK]):
        values = key_address(c, blocks, layer, head, slot) + c[t.KEY_BYTES]
        there, share = _ahead(c, layer, 2 + min((slot - low) // c[t.BLOCK], 1), ahead, values)
        row = 0
        while row < num_rows:
            count = min(num_rows - row, c[t.ATTENTION + t.MIX_ROWS])
            call_tile(
                c[t.ATTENTION + t.MIX + count - 1],
                (
                    scores + row * SCORES_STRIDE + c[t.WEIGHT_BYTES] * (slot - low),
                    values,
                    c[t.VALUE_BYTES],
                    min(high - slot, c[t.BLOCK]),
                    mixed + row * c[t.MIXED_STRIDE],
                    c[t.MIXED_STRIDE],
                    value_pad(c) >> 4,
                    there,
                    share,
                ),
            )
            row += count
            there = values


@inner_kernel
def _spread(c, blocks, layer, head, low, high, scales):
    """The scales of values of slots low .. high - 1, as f32."""
    for slot in range(low, high, c[t.BLOCK]):
        source = key_address(c, blocks, layer, head, slot) + c[t.KEY_BYTES] + c[t.VALUE_SCALES]
        count = (min(high - slot, c[t.BLOCK]) + 15) >> 4
        call_row(c[t.ATTENTION + t.SPREAD], (source, scales + 4 * (slot - low), count))


@inner_kernel
def _begin(c, num_rows, width, scores, mixed, facts):
    """Set where the sums of mixing begin; with scaled values make weights integers."""
    for row in range(num_rows):
        target = mixed + row * c[t.MIXED_STRIDE]
        if c[t.KV_SCALED] == 0:
            _fill(target, 0, value_pad(c), np.float32(0.0))
            continue
        own = scores + row * SCORES_STRIDE
        step = facts + row * c[t.FACTS_STRIDE] + c[t.FACTS_STRIDE] // 3 * 2
        vectors = value_pad(c) >> 4
        call_row(c[t.ATTENTION + t.WEIGH], (own, width >> 4, step, target, vectors))


@inner_kernel
def attend_span(c, thread, layer, head, span, rows, ahead):
    """Fill MIXED and FACTS with what the span comes to for each of the rows that reach it."""
    part, first_row, num_rows, region = rows
    group = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    first_node = part_entry(c, part, t.FIRST_NODE)
    last_node = first_node + (first_row + num_rows - 1) // group
    low = span * SPAN
    seen = 0
    for node in range(first_node + first_row // group, last_node + 1):
        seen = max(seen, node_entry(c, node, t.SLOT) + 1)
    if seen <= low:
        return
    high = min(seen, low + SPAN)
    for node in range(first_node + first_row // group, last_node + 1):
        extras = node_entry(c, node + 1, t.EXTRA_START) - node_entry(c, node, t.EXTRA_START)
        if extras > 0 and node_entry(c, node, t.RUN) < low + SPAN:
            high = seen  # slots of ancestors lie past their places
    scores = c[t.SCORES] + thread * c[t.SCORES_THREAD]
    mixed = c[t.MIXED] + region * c[t.MIXED_STRIDE] + span * value_pad(c) * 4
    facts = c[t.FACTS] + region * c[t.FACTS_STRIDE] + span * 4
    width, scales = (high - low + 15) & ~15, scores + ROW_BLOCK * SCORES_STRIDE
    _score(c, layer, head, rows, low, high, scores, ahead)
    if c[t.KV_SCALED] != 0:
        _spread(c, part_entry(c, part, t.BLOCKS), layer, head, low, high, scales)
    for row in range(num_rows):
        node, own = first_node + (first_row + row) // group, scores + row * SCORES_STRIDE
        _softmax(c, node, own, low, width, scales, facts + row * c[t.FACTS_STRIDE])
    _begin(c, num_rows, width, scores, mixed, facts)
    _mix(c, layer, head, rows, low, high, scores, mixed, ahead)
