"""One token sequence in a target: what is committed of it, and what waits for its commit.

A target computes; its sequences are what it computes on, and the only door to their positions. They
share the target's weights, and a pass may take nodes of several (`Target.forward`).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.early_checks import check_adapted, check_early
from edgespec.backends.follower import Follower
from edgespec.backends.passes import Capabilities, Pass, Progress, Rows, TokenTree
from edgespec.errors import BackendError, ContextOverflowError
from edgespec.models.spec import ModelSpec


class SequenceHost(ABC):
    """What a sequence asks of the target it lives in. Backends fill the hooks whose names start
    with an underscore; arguments were checked before.
    """

    capabilities: Capabilities
    spec: ModelSpec
    context_length: int  # most positions of each sequence

    @property
    @abstractmethod
    def prefill_chunk(self) -> int:
        """Most tokens one prefill step may hold."""

    def prefill_step(self, length: int) -> int:
        """Most tokens that the prefill step after so many positions may hold."""
        return self.prefill_chunk

    @property
    def bytes_read(self) -> int:
        """Of weights that are on disk."""
        return 0

    @property
    def early_room(self) -> int:
        """Nodes that `forward_until` can still take before a commit, of all sequences together."""
        return 0

    @abstractmethod
    def forward(
        self, parts: abc.Sequence[tuple[KvSequence, TokenTree]], *, rows: Rows = "all"
    ) -> Pass:
        """Score trees on top of their sequences in one pass."""

    @abstractmethod
    def check(self, sequence: KvSequence, tokens: NDArray[np.int32]) -> None:
        """Raise BackendError for what a pass cannot work with."""

    @abstractmethod
    def adopt(self, state: Any, length: int) -> KvSequence:
        """A new sequence around what the backend made for it."""

    @abstractmethod
    def release(self, sequence: KvSequence) -> None:
        """Give a sequence's memory back; `KvSequence.close` calls this once."""

    def limit_threads(self, most: int | None) -> None:  # noqa: B027 - not all backends can
        """Compute passes on at most so many of the planned threads; None: on as many as ever."""

    def has_adapter(self, layer: int) -> bool:
        """Whether exits after this layer can go through an adapter."""
        return False

    @abstractmethod
    def _commit(self, sequence: KvSequence, path: abc.Sequence[int]) -> None:
        """Keep these nodes of the last pass; `length` still counts the positions before them."""

    @abstractmethod
    def _truncate(self, sequence: KvSequence, length: int) -> None:
        """Forget positions; `length` still counts them."""

    @abstractmethod
    def _snapshot(self, sequence: KvSequence) -> Any:
        """A copy of what is committed."""

    @abstractmethod
    def _restore(self, sequence: KvSequence, snapshot: Any) -> int:
        """Put a copy back in place of all, return its length; BackendError for something else."""

    @abstractmethod
    def _prefill(
        self,
        sequence: KvSequence,
        tokens: NDArray[np.int32],
        states: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32] | None:
        """Compute and keep a chain's KV, a draft head's with its states; `length` still counts the
        positions before it. Returns what `Pass.hidden` is."""

    def _fork(self, sequence: KvSequence, length: int) -> Any:
        """What the backend keeps of one that begins like another, where it has `sequences`."""
        raise NotImplementedError

    def _rewindable(self, sequence: KvSequence, length: int) -> int:
        """`KvSequence.rewindable`, of fewer positions than are committed."""
        return length

    def _forward_until(
        self,
        sequence: KvSequence,
        layer: int,
        tokens: abc.Sequence[int],
        parents: abc.Sequence[int],
        vocab: int | None,
        rows: Rows,
        adapted: bool,
    ) -> Pass:
        """`KvSequence.forward_until`, where the backend has `early_exit`."""
        raise NotImplementedError

    def _deepen(
        self, sequence: KvSequence, layer: int, vocab: int | None, rows: Rows, adapted: bool
    ) -> Pass:
        """`KvSequence.deepen`, where the backend has `early_exit`."""
        raise NotImplementedError

    def _trace(
        self,
        sequence: KvSequence,
        tokens: NDArray[np.int32],
        layers: abc.Sequence[int],
        out: NDArray[np.float32],
    ) -> None:
        """`KvSequence.trace`, where the backend has `early_exit`."""
        raise NotImplementedError


class KvSequence:
    """Keys and values of one token sequence: `length` positions are committed.

    Made by `Target.open_sequence` and `fork`; to be closed, which gives its memory back.
    """

    __slots__ = (
        "_parents", "_target", "closed", "early", "follower", "idle", "length", "lender", "state",
    )  # fmt: skip

    def __init__(
        self, target: SequenceHost, state: Any, length: int = 0, *, idle: bool = False
    ) -> None:
        # Weak, so that a target nobody holds any more, whose first sequence this may be, ends at
        # once.
        self._target = weakref.ref(target)
        self.state = state
        """What the backend keeps of it."""
        self.length = length
        self.idle = idle
        """Holds what was set aside; takes part in no pass."""
        self.early: Any = None
        """What the backend keeps of nodes that `forward_until` computed, if any."""
        self.follower: Follower | None = None
        self.lender: KvSequence | None = None
        """Of a draft head that keeps no keys and values: whose it reads, the model's sequence."""
        self.closed = False
        self._parents: abc.Sequence[int] = ()
        """Of the nodes that wait for their commit."""

    @property
    def target(self) -> SequenceHost:
        """What it was opened in; raises BackendError when that is gone."""
        target = self._target()
        if target is None:
            raise BackendError("this sequence's target is gone; load the model again")
        return target

    def belongs_to(self, target: SequenceHost) -> bool:
        """Whether it was opened in this target, and is open."""
        return not self.closed and self._target() is target

    def expect(self, parents: abc.Sequence[int]) -> None:
        """A pass over a tree with these parents can be committed now; without any, none can."""
        self._parents = parents

    def forward(self, tree: TokenTree, *, rows: Rows = "all") -> Pass:
        """`Target.forward` for this sequence alone."""
        return self.target.forward(((self, tree),), rows=rows)

    def commit(self, path: abc.Sequence[int]) -> None:
        """Keep the KV of these nodes of the last forward pass, a path from the root down, and drop
        the rest in place.
        """
        waiting = self._parents
        alone = len(path) == 1 and path[0] == 0 and waiting  # plain decoding, every step
        if not alone and any(
            not 0 <= node < len(waiting) or waiting[node] != parent
            for node, parent in zip(path, (-1, *path[:-1]), strict=False)
        ):
            raise BackendError(
                f"commit got {list(path)} after a forward pass of {len(waiting)} nodes; "
                "it takes a path that starts at the root, each node the parent of the next"
            )
        self.target._commit(self, path)
        if self.follower is not None:
            self.follower.committed(self.length, path)
        self._moved(self.length + len(path))

    def rewindable(self, length: int) -> int:
        """The most positions, `length` or fewer, that it can return to: not everything that has
        left a window, or went into a state, is kept.
        """
        if not 0 <= length <= self.length:
            raise BackendError(
                f"cannot truncate to {length} positions: {self.length} are committed"
            )
        return length if length == self.length else self.target._rewindable(self, length)

    def truncate(self, length: int) -> int:
        """Forget every position from `length` on, or from where it can return to; returns that."""
        kept = self.rewindable(length)
        self.target._truncate(self, kept)
        self._moved(kept)
        self._tell(kept)
        return kept

    def _tell(self, length: int) -> None:
        """Who follows is told that only so many positions are as they were."""
        if self.follower is not None:
            self.follower.truncated(length)

    def snapshot(self) -> Any:
        """A copy of the committed positions that `restore` takes back."""
        return self.target._snapshot(self)

    def restore(self, snapshot: Any) -> None:
        """Return to a snapshot of a sequence of the same target."""
        self._moved(self.target._restore(self, snapshot))
        self._tell(0)

    def filled(self, length: int) -> None:
        """`length` positions are committed, because its blocks were written from elsewhere."""
        self._moved(length)
        self._tell(0)

    def _moved(self, length: int) -> None:
        """So many positions are committed now, and nothing waits."""
        self.length = length
        self._parents, self.early = (), None

    def prefill(
        self,
        tokens: abc.Sequence[int] | NDArray[np.int32],
        *,
        progress: Progress | None = None,
        chunk: int | None = None,
        states: NDArray[np.float32] | None = None,
    ) -> None:
        """Commit `tokens`, of a draft head with their `states` [tokens, width], without looking at
        their logits, in chunks of at most `chunk` (or max_nodes) tokens.
        """
        target = self.target
        ids = np.asarray(tokens, dtype=np.int32)
        target.check(self, ids)
        self._parents, self.early = (), None
        if self.length + len(ids) > target.context_length:
            raise ContextOverflowError(
                f"the prompt needs {self.length + len(ids)} tokens and the context holds "
                f"{target.context_length}; shorten the prompt or load with a larger --context"
            )
        done = 0
        while done < len(ids):
            most = target.prefill_step(self.length)
            part = ids[done : done + min(chunk or most, most)]
            own = None if states is None else states[done : done + len(part)]
            hidden = target._prefill(self, part, own)
            if self.follower is not None and hidden is not None:
                self.follower.prefilled(self.length, part, hidden)
            self.length += len(part)
            done += len(part)
            if progress is not None:
                progress(done, len(ids))

    def trace(
        self, tokens: NDArray[np.int32], layers: abc.Sequence[int], out: NDArray[np.float32]
    ) -> None:
        """Commit at most `prefill_chunk` tokens, and fill `out` [layers and one, tokens, dim] with
        the residual streams after these layers, ascending, and after the last; where the backend
        has `early_exit`.
        """
        target = self.target
        target.check(self, tokens)
        target._trace(self, tokens, layers, out)
        self._moved(self.length + len(tokens))
        self._tell(0)

    def forward_until(
        self,
        layer: int,
        tokens: abc.Sequence[int],
        parents: abc.Sequence[int],
        *,
        vocab: int | None = None,
        rows: Rows = "last",
        adapted: bool = False,
    ) -> Pass:
        """Run nodes through the first `layer` layers only, and then the last norm and the head.

        Nodes are numbered over all calls since the last commit: the first of all is the sequence's
        next token, its parent -1; `parents` are numbers of nodes before. The next `forward` over
        nodes with the same paths goes on from there and computes nothing twice. `vocab` asks for
        the logits of the first tokens of the vocabulary only, rounded up to a tile of them;
        `adapted` puts the layer's adapter before the head, which changes nothing but these logits.
        Raises BackendError where the backend's capabilities have no `early_exit`, when the layer is
        not one between the first and the last, or not that of the nodes before;
        ContextOverflowError when there is no room.
        """
        target = self.target
        if not target.capabilities.early_exit:
            raise BackendError(
                f"the {target.capabilities.name} backend cannot leave a pass of this model early; "
                "use --backend native, and a model that keeps no states"
            )
        target.check(self, np.asarray(tokens, np.int32))
        if not 1 <= layer < target.spec.num_layers:
            raise BackendError(
                f"an exit after layer {layer} was asked for; this model has "
                f"{target.spec.num_layers} layers, so it can be 1 to {target.spec.num_layers - 1}"
            )
        check_early(self.early, layer, parents, self.early_room)
        check_adapted(target, layer, adapted)
        return target._forward_until(self, layer, tokens, parents, vocab, rows, adapted)

    def deepen(
        self, layer: int, *, vocab: int | None = None, rows: Rows = "last", adapted: bool = False
    ) -> Pass:
        """Let all nodes that left early go on to a deeper exit, or ask theirs again, with or
        without its adapter; what is found is what `forward_until` finds there. BackendError when
        there are none, or the layer is before theirs.
        """
        target = self.target
        if self.early is None or not self.early.layer <= layer < target.spec.num_layers:
            raise BackendError(
                f"an exit after layer {layer} was asked for nodes that left before; there must be "
                f"some, and a layer from theirs to the last of {target.spec.num_layers}"
            )
        check_adapted(target, layer, adapted)
        return target._deepen(self, layer, vocab, rows, adapted)

    @property
    def early_room(self) -> int:
        """Nodes that `forward_until` still takes before a commit."""
        target, first = self.target, 0 if self.early is None else len(self.early)
        return min(target.early_room, target.context_length - self.length - first)

    def fork(self, length: int | None = None) -> KvSequence:
        """Another sequence that begins with the first `length` positions (all) of this one, which
        both share until one of them writes there. BackendError when it cannot return there.
        """
        kept = self.length if length is None else length
        if not 0 <= kept <= self.length or self.rewindable(kept) < kept:
            raise BackendError(f"cannot fork at {kept} positions: {self.length} are committed")
        return self.target.adopt(self.target._fork(self, kept), kept)

    def begin_like(self, other: KvSequence, length: int) -> None:
        """Forget everything and begin with the first `length` positions of another, as `fork`."""
        is_there = other.target is self.target and 0 <= length <= other.length
        if not is_there or other.rewindable(length) < length:
            raise BackendError(
                f"cannot begin with {length} positions of a sequence that has {other.length} "
                "committed"
            )
        state = self.target._fork(other, length)
        self.truncate(0)
        self.state, self.length = state, length

    def swap(self, other: KvSequence) -> None:
        """Exchange contents with another sequence of the same target."""
        if other.target is not self.target:
            raise BackendError("two sequences of different targets cannot exchange their contents")
        self.state, other.state = other.state, self.state
        self.length, other.length = other.length, self.length
        self._parents = other._parents = ()
        self._tell(0)
        other._tell(0)

    def close(self) -> None:
        """Give its memory back; using it afterwards is an error."""
        if not self.closed:
            self.closed = True
            self._parents = ()
            target = self._target()
            if target is not None:
                target.release(self)
