"""Attention by itself: one layer's keys and values are put in, queries asked, without a model; and
the same in float64, without anything clever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels import work_sharing
from edgespec.backends.native.kernels.attention.grouped_query import (
    attend_share,
    describe_part,
    finish_node,
    first_query,
    put_query,
)
from edgespec.backends.native.kernels.kv import places as kv_places
from edgespec.backends.native.scratch import Scratch
from edgespec.backends.native.shapes import Shape
from edgespec.memory.kv.arena import SCALED
from edgespec.memory.plan.kv_sizes import shape_of
from edgespec.system.jit import kernel
from tests.support.machines import model

Floats = NDArray[np.float32]


@kernel
def _put(c, blocks, first, keys, values):  # type: ignore[no-untyped-def]
    for place in range(keys.shape[0]):
        for head in range(keys.shape[1]):
            key, value = keys[place, head], values[place, head]
            slot, places = first + place, (key.ctypes.data, value.ctypes.data)
            kv_places.store_kv(c, blocks, 0, head, slot, *places)


@kernel
def _ask(c, queries):  # type: ignore[no-untyped-def]
    group = c[t.NUM_HEADS] // c[t.NUM_KV_HEADS]
    for node in range(queries.shape[0]):
        for head in range(queries.shape[1]):
            query = queries[node, head]
            put_query(c, head // group, first_query(c, node) + head % group, query.ctypes.data)


@kernel
def _attend(c, threads, num_nodes, sinks):  # type: ignore[no-untyped-def]
    work_sharing.share_out(c, threads)
    for thread in range(threads):
        attend_share(c, thread, 0, sinks, num_nodes)
    for node in range(num_nodes):
        finish_node(c, node, num_nodes, sinks)


class Attending:
    """One layer's attention with `length` committed positions."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_type: str = "f16",
        *,
        max_nodes: int = 40,
        threads: int = 1,
        context: int = 2048,
        sinks: Floats | None = None,
        **changes: Any,
    ) -> None:
        """`changes` are further fields of the layer's `Attention`, `sinks` f32 [heads]."""
        self.spec, _ = model(
            layers=1, heads=heads, kv_heads=kv_heads, dim=16 * heads, head_dim=head_dim
        )
        self._sinks = sinks
        own = replace(self.spec.layers[0].mixer, sinks="" if sinks is None else "sinks", **changes)
        self.spec = replace(self.spec, layers=(replace(self.spec.layers[0], mixer=own),))
        spec, c = self.spec, np.zeros(t.NUM_ENTRIES, np.int64)
        self.shape = Shape(shape_of(own), [0], spec, None, context)  # type: ignore[arg-type]
        self.arena = self.shape.arena(context, kv_type, 1, 64)
        self.blocks = self.arena.table()
        self.threads, self.length = threads, 0
        self.scratch = Scratch.allocate(spec, context, max_nodes, 64, threads, kv_type)
        self.scratch.fill(c)
        self.shape.fill(c, max_nodes, 1)
        self.shape.fill_arena(c, self.arena)
        self.shape.fill_queries(c, self.scratch, kv_type, 1)
        self._nodes = np.zeros((65, t.NODE_COLUMNS), np.int32)
        self._extra = np.zeros(64 * 64, np.int32)
        self._parts = np.zeros((2, t.PART_COLUMNS), np.int64)
        for entry, array in (
            (t.NODES, self._nodes),
            (t.EXTRA, self._extra),
            (t.PARTS, self._parts),
        ):
            c[entry] = array.ctypes.data
        c[t.NUM_PARTS] = 1
        self._words = np.zeros((work_sharing.MEMBERS + threads * work_sharing.LINE) // 8, np.int64)
        c[t.TEAM] = self._words.ctypes.data
        self._words[work_sharing.SIZE // 8] = threads
        self._words[(work_sharing.MEMBERS + work_sharing.SHARE) // 8 :: work_sharing.LINE // 8] = (
            1 << 10
        )
        self.table = c

    def put(self, first: int, keys: Floats, values: Floats) -> None:
        """Store keys and values [n, kv_heads, head_dim] from slot `first` on."""
        self.blocks.reserve(first, first + len(keys))
        places = (self.blocks.addresses.ctypes.data, first)
        _put(self.table, *places, keys.copy(), values.copy())  # heads may be turned in place

    def move(self, source: int, target: int) -> None:
        kv_places.move_kv(self.table, self.blocks.addresses.ctypes.data, 1, source, target)

    def attend(self, parents: list[int], queries: Floats) -> Floats:
        """Queries [n, heads, head_dim] of nodes, whose own keys and values are in place."""
        tree, places = np.array(parents, np.int16), np.arange(len(parents), dtype=np.int32)
        addresses, described = self.blocks.addresses, (self._nodes, self._extra, self._parts)
        describe_part(self.table, tree, places, places, 0, self.length, addresses, *described)
        self._words[work_sharing.COUNTER // 8] = 0
        _ask(self.table, queries.copy())
        sinks = 0 if self._sinks is None else self._sinks.ctypes.data
        _attend(self.table, self.threads, len(parents), sinks)
        own = self.shape.attention
        rows = self.scratch.attended.floats[: len(parents), : own.heads * own.value_dim]
        return rows.reshape(*queries.shape[:2], own.value_dim).copy()


def exact(keys: NDArray[Any], values: NDArray[Any], query: NDArray[Any]) -> NDArray[np.float64]:
    """Attention of one query head over all keys and values [n, head_dim], in float64."""
    scores = keys.astype(np.float64) @ query.astype(np.float64)
    weights = np.exp(scores - scores.max())
    result: NDArray[np.float64] = weights / weights.sum() @ values.astype(np.float64)
    return result


def kept(kv_type: str, numbers: Floats, *, keys: bool) -> Floats:
    """What a cache makes of keys or values [..., head_dim]."""
    if kv_type == "f16":
        return numbers.astype(np.float16).astype(np.float32)
    return turned(as_stored(kv_type, turned(numbers), keys=keys))


def as_stored(kv_type: str, numbers: Floats, *, keys: bool) -> Floats:
    """What is stored of turned heads [..., head_dim], in int8 or q4."""
    size = SCALED if keys else numbers.shape[-1]
    rounded = _as_q4 if kv_type == "q4" else _as_int8
    parts = range(0, numbers.shape[-1], size)
    return np.concatenate([rounded(numbers[..., i : i + size]) for i in parts], axis=-1)


def turned(heads: Floats) -> Floats:
    """Heads [..., head_dim] turned as int8 and q4 keep them, in f32; twice is where one began."""
    size = heads.shape[-1] & -heads.shape[-1]
    parts = heads.reshape(-1, size).copy()
    factor, step = np.float32(1.0) / np.sqrt(np.float32(size)), 1
    while step < size:
        if step == 16:
            parts *= factor
        pairs = parts.reshape(-1, size // (2 * step), 2, step)
        one, two = pairs[:, :, 0].copy(), pairs[:, :, 1].copy()
        pairs[:, :, 0], pairs[:, :, 1] = one + two, one - two
        step *= 2
    if size <= 16:
        parts *= factor
    return parts.reshape(heads.shape)


def _as_q4(numbers: Floats) -> Floats:
    place = np.abs(numbers).argmax(axis=-1, keepdims=True)
    wished = np.take_along_axis(numbers, place, axis=-1) * np.float32(-0.125)
    scale = np.clip(wished, -65504, 65504).astype(np.float16).astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale != 0, np.float32(1.0) / scale, np.float32(0.0))
    rounded: Floats = np.clip(np.rint(numbers * inverse), -8, 7).astype(np.float32) * scale
    return rounded


def _as_int8(numbers: Floats) -> Floats:
    wished = np.abs(numbers).max(axis=-1, keepdims=True) * np.float32(1.0 / 127.0)
    near = wished.astype(np.float16)
    scale = np.where(near < wished, np.nextafter(near, np.float16(np.inf)), near).astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale > 0, np.float32(1.0) / scale, np.float32(0.0))
    rounded: Floats = np.clip(np.rint(numbers * inverse), -127, 127).astype(np.float32) * scale
    return rounded
