"""What recurrent layers are told about the pass at hand, and what becomes of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.recurrent import walk
from edgespec.backends.native.kernels.recurrent import words as w
from edgespec.backends.native.recurrent.states import KeptRows, SequenceStates, StatePool
from edgespec.errors import BackendError
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.state_layout import (
    CHECKPOINT_EVERY,
    CHECKPOINTS,
    INSTRUCTION_WORDS,
    PART_WORDS,
    ROW_WORDS,
    num_kept,
    num_states,
    state_layout,
    work_bytes,
)
from edgespec.models.layers import Recurrent
from edgespec.models.spec import ModelSpec

Trees = Sequence[tuple[SequenceStates, NDArray[np.int16]]]
"""Sequences, and the parents of the nodes to be computed of each."""
LEAST_PROMPT = 32
"""Positions read at once whose end is worth a state of its own, to return to."""
_NO_NODES = np.zeros(0, np.int16)


def recurrent_passes(spec: ModelSpec, plan: Plan) -> RecurrentPasses | None:
    """What recurrent layers need beside, if the model has some."""
    if not any(isinstance(layer.mixer, Recurrent) for layer in spec.layers):
        return None
    rows = tile.padded(max(plan.prefill_chunk, plan.max_nodes))
    sizes = plan.max_nodes, plan.threads, plan.sequences
    return RecurrentPasses(spec, rows, *sizes, checkpoints=plan.checkpoints)


class RecurrentPasses:
    """States of all sequences, what is kept of nodes, and scratch, allocated once; `walk` computes
    a pass without rows, in which states take what is pending.
    """

    def __init__(
        self,
        spec: ModelSpec,
        num_rows: int,
        max_nodes: int,
        threads: int,
        sequences: int,
        checkpoints: int = CHECKPOINTS,
    ) -> None:
        layout = state_layout(spec)
        self.max_nodes = max_nodes
        self.pool = StatePool(layout.state_bytes, num_states(sequences, checkpoints), checkpoints)
        self.kept = KeptRows(num_kept(max_nodes), layout.kept_bytes)
        self.projected = np.zeros((num_rows, layout.projected), np.float32)
        self.mixed = np.zeros((num_rows, layout.mixed), np.float32)
        self.decays, self.betas = np.zeros((2, num_rows, layout.gates), np.float32)
        self.work = np.zeros((threads, work_bytes(spec, max_nodes)), np.uint8)
        self.words = np.zeros(w.PASS_WORDS, np.int64)
        """Of the pass; see `kernels/recurrent/words.py`."""
        self._rows = np.zeros((num_rows, ROW_WORDS), np.int64)
        self._parts = np.zeros((sequences, PART_WORDS), np.int64)
        self._instructions = np.zeros((num_rows + sequences, INSTRUCTION_WORDS), np.int64)
        self._pending = np.zeros(num_kept(max_nodes), np.int64)
        self._scratch = np.zeros((walk.SCRATCH_ROWS, max_nodes), np.int64)
        self.words[w.PARTS] = self._parts.ctypes.data
        self.words[w.ROWS] = self._rows.ctypes.data
        self.words[w.INSTRUCTIONS] = self._instructions.ctypes.data
        self.walk: Callable[[], None] = lambda: None

    @property
    def scratch_bytes(self) -> int:
        """Bytes of everything but states."""
        arrays = (
            *(self.kept.memory, self.projected, self.mixed, self.decays, self.betas, self.work),
            *(self.words, self._rows, self._parts, self._instructions, self._pending),
            self._scratch,
        )
        return sum(array.nbytes for array in arrays)

    def sequence(self) -> SequenceStates:
        """The states of an empty sequence."""
        return SequenceStates(self.pool, self.kept)

    def begin(self, trees: Trees) -> None:
        """Before a pass over trees: of their nodes is kept what they would do to the states."""
        needed = sum(len(parents) for _, parents in trees)
        for own, _ in trees:
            own.forget_nodes()
            if own.read_chain:
                own.set_aside(LEAST_PROMPT)
            self._check_point(own)
        if self.kept.num_free < needed:
            for own in list(self.pool.sequences):
                self.settle(own)
        if self.kept.num_free < needed:
            raise BackendError(
                f"a pass over {needed} nodes of a model with states finds {self.kept.num_free} "
                "rows free for what is kept of them; commit or drop the last passes' nodes first"
            )
        slots = [np.array(self.kept.take(len(parents)), np.int64) for _, parents in trees]
        self._describe(trees, slots, [len(own.pending) for own, _ in trees])
        for (own, _), nodes in zip(trees, slots, strict=True):
            own.nodes = nodes.tolist()

    def begin_chain(self, own: SequenceStates, parents: NDArray[np.int16]) -> None:
        """Before a pass over a chain that is committed with it: all goes into the state."""
        own.forget_nodes()
        self._check_point(own)
        nothing = np.full(len(parents), -1, np.int64)
        self._describe([(own, parents)], [nothing], [len(own.pending)], is_chain=True)

    def end(self, trees: Trees) -> None:
        """After such a pass."""
        for number, (own, parents) in enumerate(trees):
            chain = len(parents) if self._parts[number, w.IS_CHAIN] else 0
            own.took(int(self._parts[number, w.NUM_PENDING]), chain)
            if own.settled % CHECKPOINT_EVERY == 0:
                own.set_aside()

    def settle(self, own: SequenceStates, count: int | None = None) -> None:
        """Let a state take what is pending, or the first few of it."""
        count = len(own.pending) if count is None else count
        if count:
            none = np.zeros(0, np.int64)
            self._describe([(own, _NO_NODES)], [none], [count], is_chain=True)
            self.walk()
            own.took(count)

    def _check_point(self, own: SequenceStates) -> None:
        """Set the state aside where its sequence has come past a position at which that is due."""
        while count := own.before_checkpoint():
            self.settle(own, count)
            own.set_aside()

    def _describe(
        self,
        trees: Trees,
        slots: Sequence[NDArray[np.int64]],
        counts: Sequence[int],
        is_chain: bool = False,
    ) -> None:
        """Fill the arrays; of each sequence the first `counts` pending nodes are taken."""
        first = place = taken = 0
        kept, kept_bytes = self.kept.address(0), self.kept.memory.strides[0]
        for number, ((own, parents), nodes, count) in enumerate(
            zip(trees, slots, counts, strict=True)
        ):
            changes = count or is_chain or own.state is None
            state = own.own() if changes else own.state
            assert state is not None
            pending = self._pending[taken : taken + count]
            pending[:] = [self.kept.address(slot) for slot in own.pending[:count]]
            if is_chain:
                end = walk.plan_chain(len(parents), first, count, self._instructions, place)
            else:
                end = walk.plan_tree(
                    parents, first, count, self._instructions, place, self._scratch
                )
            walk.describe_rows(parents, first, number, nodes, kept, kept_bytes, self._rows)
            self._parts[number] = (
                *(first, len(parents), state.address, state.parity),
                *(pending.ctypes.data, count, place, end - place, is_chain, 0),
            )
            first, place, taken = first + len(parents), end, taken + count
        self.words[w.NUM_PARTS] = len(trees)
