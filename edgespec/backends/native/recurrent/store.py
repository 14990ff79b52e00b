"""Keys and values, and states, of all sequences of a model with recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Part
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kv_store import KvStore, Snapshot, Tables
from edgespec.backends.native.recurrent.passes import RecurrentPasses
from edgespec.backends.native.recurrent.tables import HybridTables
from edgespec.backends.native.shapes import Shape
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.state_layout import CHECKPOINT_EVERY, STATES_ITEM
from edgespec.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class HybridSnapshot(Snapshot):
    """With a copy of the state, and its parity."""

    state: tuple[NDArray[np.uint8], int] | None


class HybridStore(KvStore):
    """A `KvStore` whose sequences have states too; positions go into those one pass late."""

    takes_chains = True

    def __init__(self, shapes: list[Shape], plan: Plan, spec: ModelSpec) -> None:
        super().__init__(shapes, plan)
        self.only = None
        rows = tile.padded(max(plan.prefill_chunk, plan.max_nodes))
        self.passes = RecurrentPasses(spec, rows, plan.max_nodes, plan.threads, plan.sequences)

    def open(self) -> Tables:
        tables = [arena.table() for arena in self.arenas]
        return HybridTables(tables, self.passes, self.passes.sequence())

    def begin(self, parts: Sequence[Part], is_chain: bool = False) -> None:
        trees = [(sequence.state.states, tree.parents) for sequence, tree in parts]
        if is_chain:
            self.passes.begin_chain(*trees[0])
        else:
            self.passes.begin(trees)

    def end(self, parts: Sequence[Part]) -> None:
        self.passes.end([(sequence.state.states, tree.parents) for sequence, tree in parts])

    def prefill_step(self, length: int, most: int) -> int:
        """Up to where the next state is set aside."""
        return min(most, CHECKPOINT_EVERY - length % CHECKPOINT_EVERY)

    def commit(
        self, tables: Sequence[NDArray[np.int64]], sequence: KvSequence, slots: Sequence[int]
    ) -> None:
        own = sequence.state.states
        if own.nodes:  # a chain's are in the state already
            own.commit(slots)
        super().commit(tables, sequence, slots)

    def rewindable(self, sequence: KvSequence, length: int) -> int:
        found: int = sequence.state.states.rewindable(length)
        return found if super().rewindable(sequence, found) == found else 0

    def snapshot(self, sequence: KvSequence) -> HybridSnapshot:
        own = sequence.state.states
        self.passes.settle(own)
        plain = super().snapshot(sequence)
        return HybridSnapshot(plain.length, plain.firsts, plain.blocks, own.copy())

    def restore(self, sequence: KvSequence, snapshot: Any) -> int:
        if not isinstance(snapshot, HybridSnapshot):
            raise BackendError(
                f"a native target with states cannot restore a {type(snapshot).__name__}"
            )
        length = super().restore(sequence, snapshot)
        sequence.state.states.replace(snapshot.state, length)
        return length

    @property
    def states_bytes(self) -> dict[str, int]:
        return {STATES_ITEM: self.passes.pool.size_bytes}

    @property
    def scratch_bytes(self) -> int:
        return self.passes.scratch_bytes
