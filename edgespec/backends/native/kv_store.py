"""Keys and values of all sequences of a native target: an arena for each shape of attention."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels.kv import places as kv_places
from edgespec.backends.native.recurrent.passes import RecurrentPasses
from edgespec.backends.native.recurrent.tables import HybridTables
from edgespec.backends.native.shapes import Shape
from edgespec.backends.sequence import KvSequence
from edgespec.backends.store import Outline
from edgespec.errors import BackendError, KvFileError
from edgespec.memory.kv.arena import BLOCK, BlockTable, KvArena
from edgespec.memory.kv.sequence_tables import SequenceTables
from edgespec.memory.plan.kv_sizes import KEPT_BEHIND
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.state_layout import STATES_ITEM
from edgespec.system.records import dataclass

KvTables = BlockTable | SequenceTables
"""What is kept of a sequence: in one arena, or in several."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of what is committed."""

    outline: Outline
    contents: list[NDArray[np.uint8]]


class KvStore:
    """The arenas, and what happens to a sequence's blocks in them, and to its recurrent states."""

    def __init__(
        self, shapes: list[Shape], plan: Plan, recurrent: RecurrentPasses | None = None
    ) -> None:
        rows = max(plan.prefill_chunk, plan.max_nodes)
        size = (plan.context_length, plan.kv_type, plan.sequences, rows)
        self._shapes, self._recurrent = shapes, recurrent
        self.arenas = [shape.arena(*size) for shape in shapes]
        self.only: KvArena | None = self.arenas[0] if len(shapes) == 1 else None
        """The arena of a model that has one and keeps all positions in it."""
        if recurrent is not None or any(shape.attention.reach for shape in shapes):
            self.only = None

    @property
    def shapes(self) -> list[Shape]:
        """Of the arenas."""
        return self._shapes

    def open(self) -> KvTables:
        """The tables of an empty sequence."""
        if self.only is not None:
            return self.only.table()
        tables = [arena.table() for arena in self.arenas]
        if self._recurrent is None:
            return SequenceTables(tables)
        return HybridTables(tables, self._recurrent, self._recurrent.sequence())

    def commit(
        self,
        tables: Sequence[NDArray[np.int64]],
        sequence: KvSequence,
        path: Sequence[int],
        slots: Sequence[int],
    ) -> None:
        """Keep a path of nodes of the last pass: move what lies in slots past the committed
        positions, ascending, to where these end. `tables` are the kernels', one for each shape.
        """
        if self._recurrent is not None:
            sequence.state.states.commit(path)
        length = sequence.length
        if slots and slots[-1] != len(slots) - 1:  # else all lie where they belong
            for shape, c, own in zip(self._shapes, tables, sequence.state.tables, strict=True):
                blocks, layers = own.addresses.ctypes.data, len(shape.layers)
                for place, slot in enumerate(slots):
                    if slot != place:  # ascending, so a source is read before it is overwritten
                        kv_places.move_kv(c, blocks, layers, length + slot, length + place)
        if self.only is None:
            self.drop(sequence, length + len(slots))

    def drop(self, sequence: KvSequence, length: int) -> None:
        """Give back what no window sees any more of a sequence that has become so long."""
        for shape, own in zip(self._shapes, sequence.state.tables, strict=True):
            if shape.attention.reach:
                own.drop(shape.first_needed(max(length - KEPT_BEHIND, 0)))

    def rewindable(self, sequence: KvSequence, length: int) -> int:
        """`KvSequence.rewindable`: to where states are known, and nowhere but to the start once a
        window has moved on too far.
        """
        if self._recurrent is not None:
            length = sequence.state.states.rewindable(length)
        for shape, table in zip(self._shapes, sequence.state.tables, strict=True):
            if table.first_position > shape.first_needed(length):
                return 0
        return length

    def snapshot(self, sequence: KvSequence) -> Snapshot:
        self.settle(sequence)
        contents = [content.copy() for content in self.contents(sequence)]
        return Snapshot(self.outline(sequence), contents)

    def restore(self, sequence: KvSequence, snapshot: Any) -> int:
        """Fill a sequence with a snapshot; returns its length."""
        if not isinstance(snapshot, Snapshot):
            raise BackendError(f"a native target cannot restore a {type(snapshot).__name__}")
        own = self.begin(sequence, snapshot.outline)
        for content, saved in zip(own, snapshot.contents, strict=True):
            content[:] = saved
        return snapshot.outline.length

    def when_full(self, make_room: Callable[[], bool]) -> None:
        for arena in self.arenas:
            arena.make_room = make_room
        if self._recurrent is not None:
            self._recurrent.pool.make_room = make_room

    def settle(self, sequence: KvSequence) -> None:
        """Let states take what is pending."""
        if self._recurrent is not None:
            self._recurrent.settle(sequence.state.states)

    def outline(self, sequence: KvSequence) -> Outline:
        firsts = tuple(table.first_position for table in sequence.state.tables)
        states = () if self._recurrent is None else sequence.state.states.outline()
        return Outline(sequence.length, firsts, states)

    def contents(self, sequence: KvSequence) -> list[NDArray[np.uint8]]:
        blocks: list[NDArray[np.uint8]] = sequence.state.contents(sequence.length)
        if self._recurrent is not None:
            blocks += sequence.state.states.contents()
        return blocks

    def begin(self, sequence: KvSequence, outline: Outline) -> list[NDArray[np.uint8]]:
        self._check(outline)
        sequence.truncate(0)
        for table, first in zip(sequence.state.tables, outline.firsts, strict=True):
            table.begin_at(first)
        blocks: list[NDArray[np.uint8]] = sequence.state.own_contents(0, outline.length)
        if self._recurrent is not None:
            blocks += sequence.state.states.begin(outline.states)
        return blocks

    def returns_to(self, outline: Outline, length: int) -> int:
        if self._recurrent is not None:
            length = max((at for at, _ in outline.states if at <= length), default=0)
        if len(outline.firsts) != len(self._shapes):
            return 0
        needed = (shape.first_needed(length) for shape in self._shapes)
        return 0 if any(map(operator.gt, outline.firsts, needed)) else length

    def _check(self, outline: Outline) -> None:
        """Raise KvFileError for what no sequence of this store can be: passes would read blocks
        that are not there.
        """
        firsts = [shape.first_needed(outline.length) for shape in self._shapes]
        places, parities = [0], {0}
        for at, parity in outline.states:
            places.append(at)
            parities.add(parity)
        is_sound = (
            len(firsts) == len(outline.firsts)
            and all(
                0 <= own <= needed and own % BLOCK == 0
                for own, needed in zip(outline.firsts, firsts, strict=True)
            )
            and all(one < two for one, two in pairwise(places[:-1]))
            and places[-2:] == sorted(places[-2:])  # a state may be its last checkpoint's copy
            and parities <= {0, 1}
            and places[-1] == (0 if self._recurrent is None else outline.length)
        )
        if not is_sound:
            raise KvFileError("it does not say what this model keeps of a text; save it again")

    def give_back(self) -> None:
        if self._recurrent is not None:
            self._recurrent.pool.give_back()

    @property
    def kind(self) -> str:
        """What makes blocks of one store worth nothing to another."""
        forms = [(each.kv_type, each.layout, each.block_bytes) for each in self.arenas]
        return repr((forms, [shape.rotation for shape in self._shapes]))

    @property
    def states_bytes(self) -> dict[str, int]:
        """Bytes of states, by their name in the plan's footprint; nothing where there are none."""
        own = self._recurrent
        return {} if own is None else {STATES_ITEM: own.pool.size_bytes}

    @property
    def arenas_bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(arena.size_bytes for arena in self.arenas)

    @property
    def size_bytes(self) -> int:
        return self.arenas_bytes + sum(self.states_bytes.values())
