"""Where keys and values of a position lie in the arena, and how they get there and move.

`memory/kv/arena.py` draws the layout.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import (
    call_row,
    float_to_half,
    load_byte,
    load_float,
    load_int,
    load_long,
    store_byte,
    store_short,
)
from edgespec.system.jit import inner_kernel, kernel

_MOST_HALF = np.float32(65504.0)


@inner_kernel
def node_entry(c, node, column):
    """One number of a node of the pass, by a column of `table.py`."""
    return load_int(c[t.NODES] + 4 * (node * t.NODE_COLUMNS + column))


@inner_kernel
def part_entry(c, part, column):
    """One number of a part of the pass, by a column of `table.py`."""
    return load_long(c[t.PARTS] + 8 * (part * t.PART_COLUMNS + column))


@inner_kernel
def key_address(c, blocks, layer, head, slot):
    """Where one head's part of the block of a slot starts: its keys, then its values.

    `blocks` is the address of the text's block addresses.
    """
    block = load_long(blocks + 8 * (slot // c[t.BLOCK]))
    return block + (layer * c[t.NUM_KV_HEADS] + head) * c[t.HEAD_BYTES]


@inner_kernel
def _half(value):
    """The nearest finite f16: what is stored must not spoil other rows when weighted by zero."""
    if not value < _MOST_HALF:
        value = _MOST_HALF
    return float_to_half(max(value, -_MOST_HALF))


@inner_kernel
def turn_head(c, row):
    """Rotate one head, f32 [head_dim], where keys and values are kept so; twice is not at all."""
    if c[t.ATTENTION + t.TURN] != 0:
        call_row(c[t.ATTENTION + t.TURN], (row, c[t.HEAD_DIM]))


@inner_kernel
def store_kv(c, blocks, layer, head, slot, key, value):
    """Write one position's key and value, f32 [head_dim] at two addresses, which may be turned."""
    place = key_address(c, blocks, layer, head, slot)
    tile, column = slot % c[t.BLOCK] >> 4, slot & 15
    keys = place + tile * c[t.KEY_TILE_BYTES]
    values = place + c[t.KEY_BYTES]
    within = slot % c[t.BLOCK]
    if c[t.KEY_BYTES] == 0:  # one row is both
        both = values + within * c[t.VALUE_BYTES]
        for i in range(c[t.HEAD_DIM]):
            store_short(both + 2 * i, _half(load_float(key + 4 * i)))
        return
    if c[t.KV_SCALED] == 0:
        for i in range(c[t.HEAD_DIM]):
            store_short(keys + 2 * column + 32 * i, _half(load_float(key + 4 * i)))
            store_short(
                values + within * c[t.VALUE_BYTES] + 2 * i, _half(load_float(value + 4 * i))
            )
        return
    scale = place + c[t.KEY_SCALES] + tile * 32 * ((c[t.HEAD_DIM] + 31) >> 5) + 2 * column
    dim = c[t.HEAD_DIM]
    turn_head(c, key)
    turn_head(c, value)
    call_row(c[t.ATTENTION + t.STORE_KEY], (key, keys + 4 * column, scale, dim))
    row = values + (within >> 2) * c[t.VALUE_BYTES] + (within & 3)
    scale = values + c[t.VALUE_SCALES] + 2 * within
    call_row(c[t.ATTENTION + t.STORE_VALUE], (value, row, scale, dim))


@inner_kernel
def _copy(source, target, count, stride, size):
    """Copy `count` numbers of `size` bytes, `stride` bytes from one to the next."""
    for place in range(0, count * stride, stride):
        for byte in range(place, place + size):
            store_byte(target + byte, load_byte(source + byte))


@inner_kernel
def _move_head(c, old, new, source, target):
    """Copy a position's key and value of one head; `old` and `new` are where its part starts."""
    size = 4 if c[t.KV_SCALED] != 0 else 2
    one, two = source % c[t.BLOCK], target % c[t.BLOCK]
    key = old + (one >> 4) * c[t.KEY_TILE_BYTES] + size * (one & 15)
    place = new + (two >> 4) * c[t.KEY_TILE_BYTES] + size * (two & 15)
    if c[t.KEY_BYTES] != 0:
        _copy(key, place, c[t.KEY_TILE_BYTES] // (16 * size), 16 * size, size)
    value, room = old + c[t.KEY_BYTES], new + c[t.KEY_BYTES]
    if c[t.KV_SCALED] == 0:
        _copy(value + one * c[t.VALUE_BYTES], room + two * c[t.VALUE_BYTES], c[t.HEAD_DIM], 2, 2)
        return
    blocks = (c[t.HEAD_DIM] + 31) >> 5
    key = old + c[t.KEY_SCALES] + 32 * blocks * (one >> 4) + 2 * (one & 15)
    place = new + c[t.KEY_SCALES] + 32 * blocks * (two >> 4) + 2 * (two & 15)
    _copy(key, place, blocks, 32, 2)
    row = value + (one >> 2) * c[t.VALUE_BYTES] + (one & 3)
    place = room + (two >> 2) * c[t.VALUE_BYTES] + (two & 3)
    _copy(row, place, c[t.VALUE_BYTES] >> 2, 4, 1)
    _copy(value + c[t.VALUE_SCALES] + 2 * one, room + c[t.VALUE_SCALES] + 2 * two, 1, 2, 2)


@kernel("int64[:]", "int64", "int64", "int64", "int64")
def move_kv(c, blocks, num_layers, source, target):
    """Copy one position's keys and values, all layers and heads, from one slot to another."""
    for layer in range(num_layers):
        for head in range(c[t.NUM_KV_HEADS]):
            old = key_address(c, blocks, layer, head, source)
            _move_head(c, old, key_address(c, blocks, layer, head, target), source, target)
