"""Keys and values of a draft head that has none: those that the model has committed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kv_store import KvStore, KvTables
from edgespec.backends.native.node_tables import NodeRows, Position
from edgespec.backends.native.shapes import Shape
from edgespec.backends.sequence import KvSequence
from edgespec.memory.kv.arena import KvArena
from edgespec.memory.kv.sequence_tables import SequenceTables
from edgespec.memory.plan.kv_sizes import shape_of
from edgespec.models.layers import Attention
from edgespec.models.spec import ModelSpec


class LentKv(KvStore):
    """A model's arenas, one for each shape of its head's attention; nothing is kept in them."""

    def __init__(self, shapes: list[Shape], spec: ModelSpec, lender: KvStore) -> None:
        self._shapes, self._recurrent, self.only = shapes, None, None
        self._places: list[int] = []
        self.arenas: list[KvArena] = []
        for shape in shapes:
            source = next(
                layer.mixer.shares
                for layer in spec.layers
                if isinstance(layer.mixer, Attention) and shape_of(layer.mixer) == shape.attention
            )
            place = next(n for n, own in enumerate(lender.shapes) if source in own.layers)
            shape.layers = lender.shapes[place].layers
            self.arenas.append(lender.arenas[place])
            self._places.append(place)

    def open(self) -> KvTables:
        return SequenceTables(())

    def commit(
        self,
        tables: Sequence[NDArray[np.int64]],
        sequence: KvSequence,
        path: Sequence[int],
        slots: Sequence[int],
    ) -> None:
        """Nothing is kept."""

    def last_position(self, lender: KvSequence, places: NDArray[np.int32]) -> NodeRows:
        """Nodes as if they all were the last committed position of a model's sequence."""
        tables = SequenceTables([lender.state.tables[place] for place in self._places])
        roots = np.full(len(places), -1, np.int16)
        last = Position(lender.length - 1, tables)
        return NodeRows(last, roots, np.zeros_like(places), places)

    @property
    def arenas_bytes(self) -> int:
        """None of its own."""
        return 0
