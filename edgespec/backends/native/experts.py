"""Mixtures of experts: their buffers, and the words that their stages read (`kernels/moe/`)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.matmul.tile import FORMATS, TILE_ROWS
from edgespec.backends.native.kernels.moe import words as w
from edgespec.backends.native.scratch import Rows
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.streaming.expert_store import ExpertStore
from edgespec.backends.native.weights import PackedMatrix
from edgespec.memory.plan.state_layout import round_up
from edgespec.models.layers import Dense, Matrix, Moe
from edgespec.models.spec import ModelSpec, TensorType
from edgespec.system.records import dataclass

_PADDING = 8
"""Rows past an expert's last that tile functions may read and write."""
_SCORES = {"softmax": "softmax_row", "sigmoid": "sigmoid_row"}


class PackedWeights(Protocol):
    """A model's weights, and the addresses of their descriptions, of biases and of vectors."""

    def packed(self, matrix: Matrix) -> PackedMatrix: ...
    def place(self, matrix: Matrix | None) -> int: ...
    def bias(self, matrix: Matrix | None) -> int: ...
    def vector(self, name: str, width: int = 0) -> int: ...


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """What the layers of a model that mix experts need of their buffers, at most."""

    experts: int
    active: int
    width: int
    shared_width: int

    @classmethod
    def of(cls, layers: list[Moe]) -> ExpertSizes:
        return cls(
            experts=max(each.experts for each in layers),
            active=max(each.active for each in layers),
            width=max(each.width for each in layers),
            shared_width=max(each.shared.width if each.shared else 0 for each in layers),
        )


@dataclass(frozen=True, slots=True)
class ExpertScratch:
    """What stages of experts write to, for passes of up to `rows` rows, which are padded ones."""

    rows: int
    logits: NDArray[np.float32]
    """[rows, experts to 16, and 16 for the gate of the shared one]."""
    weights: NDArray[np.float32]
    """[rows, active], and of the shared expert [rows]."""
    slots: NDArray[np.int64]
    """[3, rows, active]: experts, and slots by place and places by slot."""
    lists: NDArray[np.int64]
    """[2, experts + 1]: where an expert's places begin, and experts with rows."""
    counts: NDArray[np.int64]
    """[16]: how many experts have rows; in the second half threads that have routed."""
    inner: Rows
    """[rows * active, width], and padding."""
    shared: Rows
    """[rows, width of the shared expert]."""
    gathered: Rows
    """[threads * rows, dim]."""
    gathered_words: NDArray[np.int64]
    """[threads, 8]."""
    room: NDArray[np.uint8]
    """[threads, bytes]."""

    @classmethod
    def allocate(cls, sizes: ExpertSizes, dim: int, rows: int, threads: int) -> ExpertScratch:
        slots, experts = rows * sizes.active, round_up(sizes.experts, 16)
        room = max(_sum_room(rows, slots) + w.ROOM_BYTES, w.ROUTE_BYTES * experts)
        return cls(
            rows=rows,
            logits=np.zeros((rows, experts + 16), np.float32),
            weights=np.zeros(slots + rows, np.float32),
            slots=np.zeros((3, slots), np.int64),
            lists=np.zeros((2, sizes.experts + 1), np.int64),
            counts=np.zeros(16, np.int64),
            inner=Rows.allocate(slots + _PADDING, sizes.width),
            shared=Rows.allocate(rows, sizes.shared_width),
            gathered=Rows.allocate(threads * rows, dim),
            gathered_words=np.zeros((threads, 8), np.int64),
            room=np.zeros((threads, room), np.uint8),
        )

    @property
    def size_bytes(self) -> int:
        arrays = (self.logits, self.weights, self.slots, self.lists, self.counts)
        parts = (*arrays, self.gathered_words, self.room)
        rows = (self.inner, self.shared, self.gathered)
        return sum(each.nbytes for each in parts) + sum(each.size_bytes for each in rows)


def _sum_room(rows: int, slots: int) -> int:
    """Where a thread's room for a sum begins: after an output's tiles of all slots, and of the
    shared expert's rows.
    """
    return (slots + _PADDING + rows) * w.ROOM_BYTES


class Experts:
    """The buffers of a model's experts, the words of its layers, and what passes have read.

    `c` is the table with the model's width, its row operations and where NORMED is.
    """

    def __init__(
        self,
        layers: dict[int, Moe],
        weights: PackedWeights,
        c: NDArray[np.int64],
        rows: int,
        threads: int,
        num_layers: int,
        store: ExpertStore | None = None,
    ) -> None:
        self._weights, self._table, self._isa = weights, c, isa.chosen()
        self._store = store
        self._sizes = sizes = ExpertSizes.of(list(layers.values()))
        dim = int(c[table.DIM])
        self.scratch = ExpertScratch.allocate(sizes, dim, rows, threads)
        self.read = np.zeros(num_layers, np.int64)
        """Experts that the last pass read in each layer."""
        if store is not None:
            store.read, store.num_read = self.scratch.lists[1], self.scratch.counts
        self._words: list[NDArray[np.int64]] = []
        self._functions: dict[TensorType, NDArray[np.int64]] = {}
        entries = [matrix for own in layers.values() for matrix in (own.gate, own.up)]
        self._inner_words = self._describe(
            self.scratch.inner, [own.down for own in layers.values()]
        )
        shared = [own.shared.down for own in layers.values() if own.shared]
        self._shared_words = self._describe(self.scratch.shared, shared)
        for thread, words in enumerate(self.scratch.gathered_words):
            words[:] = self._describe(self.scratch.gathered, entries)
            for place, stride in (
                (table.FLOATS, table.FLOATS_STRIDE),
                (table.QUANTS, table.QUANTS_STRIDE),
                (table.PLANES, table.PLANES_STRIDE),
            ):
                words[place] += thread * rows * words[stride] * bool(words[place])

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        weights: PackedWeights,
        c: NDArray[np.int64],
        rows: int,
        threads: int,
        store: ExpertStore | None = None,
    ) -> Experts | None:
        """Those of a model, None where no layer mixes any; `store` holds what is on disk."""
        parts = {number: layer.ffn for number, layer in enumerate(spec.layers)}
        layers = {number: part for number, part in parts.items() if isinstance(part, Moe)}
        return cls(layers, weights, c, rows, threads, len(parts), store) if layers else None

    @property
    def are_on_disk(self) -> bool:
        """Whether a layer's must be fetched once rows have been routed."""
        return self._store is not None

    def _describe(self, rows: Rows, readers: list[Matrix]) -> NDArray[np.int64]:
        """The eight words of rows, of which only what these matrices read is written."""
        words = np.array(rows.describe(), np.int64)
        kinds = [self._weights.packed(matrix).format.is_float for matrix in readers]
        if not any(kinds):
            words[table.FLOATS] = 0
        if all(kinds):
            words[table.HAS_QUANTS] = 0
        return words

    def words(
        self,
        layer: int,
        own: Moe,
        output: tuple[int, int],
        accumulate: bool,
        factor: float = 1.0,
    ) -> int:
        """Where the words are that tell the stages of a layer: they read NORMED and write to an
        output, its address and stride, or add to it, this many times their result.
        """
        weights, found = self._weights, np.zeros(w.NUM_WORDS, np.int64)

        def part(first: int, own: Dense | Moe, inner: NDArray[np.int64]) -> None:
            for place, matrix in ((w.GATE, own.gate), (w.UP, own.up), (w.DOWN, own.down)):
                self._enter(found, first + place, matrix)
            found[first + w.ACTIVATE] = isa.activation_address(self._isa, own.activation)
            found[first + w.PART_WIDTH] = own.width
            found[first + w.INNER] = inner.ctypes.data

        part(w.EXPERTS, own, self._inner_words)
        if own.shared is not None:
            part(w.SHARED, own.shared, self._shared_words)
        self._enter(found, w.ROUTER, own.router)
        if own.shared_gate is not None:
            self._enter(found, w.SHARED_GATE, own.shared_gate)
        score = _SCORES.get(own.scoring)
        places = {
            w.NUM_EXPERTS: own.experts,
            w.ACTIVE: own.active,
            w.GROUPS: own.groups,
            w.ACTIVE_GROUPS: own.active_groups,
            w.SCORE: isa.expert_address(self._isa, score) if score else 0,
            w.CHOICE_BIAS: weights.vector(own.choice_bias) if own.choice_bias else 0,
            w.RENORMALISE: own.renormalise,
            w.SCALE_BITS: float_bits(own.scale),
            w.ROUTER_SCALE_BITS: float_bits(own.router_scale),
            w.WEIGH_INPUT: own.weigh_input,
            w.EXPERT_SCALE: weights.vector(own.expert_scale) if own.expert_scale else 0,
            w.INPUT: self._table[table.NORMED :].ctypes.data,
            w.DIM: self._table[table.DIM],
            w.OUTPUT: output[0],
            w.OUTPUT_STRIDE: output[1],
            w.ACCUMULATE: accumulate,
            w.RESIDUAL_BITS: float_bits(factor),
            w.EXPERTS_READ: self.read[layer:].ctypes.data,
            **self._held(own),
            **self._shared_places(),
        }
        for word, value in places.items():
            found[word] = value
        self._words.append(found)
        return int(found.ctypes.data)

    def _held(self, own: Moe) -> dict[int, int]:
        """Words that say where a layer's experts are, and how to ask for those on disk."""
        store = self._store
        if store is not None:
            number = store.number(own)
            return {
                w.HELD: store.held[number].ctypes.data,
                w.USED: store.used[number].ctypes.data,
                w.NUMBER: number,
                w.ASKING: store.asking.ctypes.data,
                w.LOCKS: store.locks.ctypes.data,
            }
        held = np.zeros((own.experts, 3, 2), np.int64)
        for place, matrix in enumerate((own.gate, own.up, own.down)):
            *begins, weight_bytes, scale_bytes = self._weights.packed(matrix).places
            step = np.array([weight_bytes, scale_bytes]) * (matrix.rows // TILE_ROWS)
            held[:, place] = begins + np.arange(own.experts)[:, None] * step
        self._words.append(held)
        return {w.HELD: held.ctypes.data}

    def _enter(self, words: NDArray[np.int64], place: int, matrix: Matrix) -> None:
        weights = self._weights
        words[place + w.MATRIX] = weights.place(matrix)
        words[place + w.TILES] = self._tile_functions(
            weights.packed(matrix).format.type
        ).ctypes.data
        words[place + w.BIAS] = weights.bias(matrix)

    def _tile_functions(self, kind: TensorType) -> NDArray[np.int64]:
        """Addresses of a type's tile functions and rows at once, for 1, 2, ... rows and more."""
        if kind not in self._functions:
            found, sizes = np.zeros((w.TILE_COUNTS, 2), np.int64), FORMATS[kind].sizes
            for place in range(w.TILE_COUNTS):
                size = next((each for each in sizes if each > place), sizes[-1])
                found[place] = isa.tile_address(self._isa, kind, size), size
            self._functions[kind] = found
        return self._functions[kind]

    def _shared_places(self) -> dict[int, int]:
        """Words that are the same in all layers."""
        own, rows = self.scratch, self.scratch.rows
        slots = rows * self._sizes.active
        operations = {w.SOFTMAX: "softmax_row", w.SIGMOID: "sigmoid_row", w.SCALE: "scale"}
        operations |= {w.ADD_SCALED: "add_scaled", w.COPY: "copy_rows"}
        return {
            w.QUANTISE: self._table[table.OPS + table.QUANTISE],
            **{place: isa.expert_address(self._isa, name) for place, name in operations.items()},
            w.LOGITS: own.logits.ctypes.data,
            w.LOGITS_STRIDE: own.logits.strides[0],
            w.WEIGHTS: own.weights.ctypes.data,
            w.SHARED_WEIGHTS: own.weights[slots:].ctypes.data,
            w.CHOSEN: own.slots[0].ctypes.data,
            w.PLACES: own.slots[1].ctypes.data,
            w.SLOTS: own.slots[2].ctypes.data,
            w.OFFSETS: own.lists[0].ctypes.data,
            w.READ: own.lists[1].ctypes.data,
            w.NUM_READ: own.counts.ctypes.data,
            w.ARRIVED: own.counts[8:].ctypes.data,
            w.ROOM: own.room.ctypes.data,
            w.ROOM_STRIDE: own.room.strides[0],
            w.UP_ROOM: rows * w.ROOM_BYTES,
            w.SHARED_ROOM: (slots + _PADDING) * w.ROOM_BYTES,
            w.SUM_ROOM: _sum_room(rows, slots),
            w.GATHERED: own.gathered_words.ctypes.data,
        }
