"""What a sequence of a model with recurrent layers holds: keys and values, and states."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.backends.native.recurrent.passes import RecurrentPasses
from edgespec.backends.native.recurrent.states import SequenceStates
from edgespec.memory.kv.arena import BlockTable
from edgespec.memory.kv.sequence_tables import SequenceTables


class HybridTables(SequenceTables):
    """Blocks of attention's layers, and states of the recurrent ones."""

    def __init__(
        self, tables: Sequence[BlockTable], passes: RecurrentPasses, states: SequenceStates
    ) -> None:
        super().__init__(tables)
        self._passes, self.states = passes, states

    def release(self, positions: int) -> int:
        """Return to a position that `SequenceStates.rewindable` names."""
        self.states.truncate(positions)
        return super().release(positions)

    def fork(self, positions: int) -> HybridTables:
        """Another that begins with the first positions, up to one that it can return to."""
        own = self.states
        if positions > own.settled:
            self._passes.settle(own, positions - own.settled)
        tables = super().fork(positions).tables
        return HybridTables(tables, self._passes, own.fork(positions))
