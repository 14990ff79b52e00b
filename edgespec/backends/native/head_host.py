"""What a native target does for a draft head that reads along, and as a head itself."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Part, lender_of
from edgespec.backends.native.early_exits import EarlyExits
from edgespec.backends.native.head_parts import HeadInputs, LeftStreams
from edgespec.backends.native.kv_store import KvStore
from edgespec.backends.native.lent_kv import LentKv
from edgespec.backends.native.node_tables import NodeRows
from edgespec.backends.native.pace import Pace
from edgespec.backends.native.program import Program
from edgespec.backends.native.recurrent.passes import RecurrentPasses
from edgespec.backends.native.shapes import Shape
from edgespec.backends.native.team import GuestTeam, Team
from edgespec.backends.passes import Progress, TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.spec import ModelSpec
from edgespec.system.heat import Heat, heat_of
from edgespec.system.power import spins_for

if TYPE_CHECKING:
    from edgespec.backends.native.weights import Weights

_NOTHING = (0, 0)


class HeadHost(EarlyExits):
    """The seam between a model and its head, which are both native targets."""

    _inputs: HeadInputs | None
    """Of a head: the states that it reads beside tokens."""
    _guest: Callable[[], HeadHost | None]
    """The head that reads along."""
    _embeddings: NDArray[np.float32]
    """Where those of a pass' tokens are written [rows, dim]."""
    _lender: Callable[[], HeadHost | None]
    """The model that a head reads."""
    _kv: KvStore
    _pace: Pace
    _heat: Heat | None
    _program: Program
    _recurrent: RecurrentPasses | None
    _shapes: list[Shape]
    _team: Team | GuestTeam
    _weights: Weights

    @abstractmethod
    def _choose_tiles(self, num_nodes: int) -> None:
        """Enter the tile functions for this many nodes in the table."""

    @abstractmethod
    def _compile(self) -> None:
        """Make the stages anew, entered in the table."""

    def _open_store(self, spec: ModelSpec, plan: Plan, lender: HeadHost | None) -> KvStore:
        """Arenas of its own, or the model's where a head reads its keys and values."""
        self._lender = (lambda: None) if lender is None else weakref.ref(lender)
        if lender is not None and spec.borrows_keys:
            return LentKv(self._shapes, spec, lender._kv)
        return KvStore(self._shapes, plan, self._recurrent)

    @abstractmethod
    def _open_guest(self, file: ModelFile, plan: Plan, progress: Progress | None) -> HeadHost:
        """A head on this target's threads."""

    def _begin_head(self, num_rows: int) -> None:
        """What a head takes and leaves, if this is one; nobody reads along yet."""
        self._guest = lambda: None
        part = self.spec.head_input
        self._inputs = self._left = None
        self._embeddings = self._scratch.stream
        if part is not None:
            self._inputs = HeadInputs(self.spec, part, num_rows)
            if self._inputs.tokens is not None:
                self._embeddings = self._inputs.tokens
            after, normed = (self.spec.num_layers,), part.normed_states
            self._left = LeftStreams(self.spec, after, num_rows, normed=normed)

    def _team_beside(self, lender: HeadHost | None, plan: Plan) -> Team | GuestTeam:
        """Threads of its own, or the lender's."""
        if lender is None:
            self._heat = heat_of(plan.power, plan.threads)
            return Team(self._tables[0], plan.threads, spins_for(plan.power))
        self._heat = lender._heat
        return GuestTeam(lender.team, self._tables)

    @property
    def team(self) -> Team:
        """The threads, which a draft head uses between passes."""
        assert isinstance(self._team, Team)
        return self._team

    def open_head(self, file: ModelFile, plan: Plan, progress: Progress | None = None) -> HeadHost:
        part = file.spec.head_input
        assert part is not None
        self._left = LeftStreams(self.spec, part.taps, len(self._scratch.stream))
        width = self._left.rows.shape[1]
        self._early.left = np.zeros((self.max_nodes, width), np.float32)
        self._compile()
        return self._open_guest(file, plan, progress)

    def allocated_bytes(self) -> dict[str, int]:
        """What this target has allocated, by the names of the plan's footprint."""
        raise NotImplementedError

    @property
    def left_bytes(self) -> int:
        """Bytes of what passes leave for a draft head, or of what a head takes and leaves."""
        left = 0 if self._left is None else self._left.rows.nbytes
        taken = 0 if self._inputs is None else self._inputs.size_bytes
        return left + taken + self._early.size_bytes - self._early.rows.nbytes

    @property
    def head_bytes(self) -> int:
        """Bytes of the head that reads along, and of what it reads; 0 without one."""
        head = self._guest()
        if head is None:
            return 0
        return sum(head.allocated_bytes().values()) + head.left_bytes + self.left_bytes

    def _whole(self, sequence: KvSequence, tree: TokenTree) -> NodeRows:
        """All nodes of a tree, in slots in a row; nodes that were computed early are forgotten."""
        sequence.early = None
        places = self._nodes.in_order[: len(tree)]
        if isinstance(self._kv, LentKv):
            model = self._lender()
            assert model is not None  # a model closes its head before itself
            return self._kv.last_position(lender_of(sequence, model), places)
        sequence.state.reserve(sequence.length, sequence.length + len(tree))
        return NodeRows(sequence, tree.parents, places, places)

    def _take_states(self, parts: Sequence[Part], num_rows: int) -> None:
        """What a draft head's pass reads beside tokens, of one sequence at a time."""
        if self._inputs is None:
            return
        states: NDArray[np.float32] | None = parts[0][1].states if len(parts) == 1 else None
        if self._inputs.take(states, num_rows):
            first, last = self._program.fusing
            self._inputs.point(self._program.words[first])
            self._choose_tiles(num_rows)
            self._team.run((*_NOTHING, first, last), num_rows, 0, self._pace.threads)
