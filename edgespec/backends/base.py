"""The seam between the decode loop and whatever computes logits.

A backend opens a model and gives back a `Target`. The decode loop asks a target five things:
compute the logits of a small tree of tokens (`forward`), keep one path of it (`commit`), forget
positions (`truncate`), remember and return (`snapshot`, `restore`), and what a forward pass costs
(`cost_curve`). These are about the target's own text; further texts are `open_sequence`'s, and
`forward_batch` computes trees of several in one pass. Shared code here and in `sequence.py` checks
arguments and phrases errors; a backend fills the hooks whose names start with an underscore.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.pass_times import pass_times
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError, ContextOverflowError
from edgespec.memory.kv.arena import KvArena
from edgespec.models.spec import ModelSpec

_CURVE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
Logits = NDArray[np.float32]
TILE = 16
"""Neighbouring logits that share one maximum; the last tile of a row may be shorter."""
Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all) while a prompt is prefilled."""


@dataclass(slots=True)  # not frozen: that would triple the time it takes to make one
class TokenTree:
    """Tokens to be scored in one pass: `parents[i] < i`, and node 0, the root, has parent -1.

    The root stands at position `Target.length`; a child one after its parent. A chain is a tree.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int16]

    @classmethod
    def chain(cls, tokens: Sequence[int] | NDArray[np.int32]) -> Self:
        """A tree without branches."""
        ids = np.asarray(tokens, dtype=np.int32)
        return cls(ids, np.arange(-1, len(ids) - 1, dtype=np.int16))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, known when planning and never discovered later."""

    name: str
    bit_exact_rows: bool
    """A row's logits do not depend on what else is in the batch."""
    trees: bool
    sequences: bool
    """Several texts in one pass, which reads the weights once for all of them."""
    early_exit: bool = False
    """Passes through the first layers only, which a whole pass goes on from."""


Part = tuple[KvSequence, TokenTree]
"""A sequence, and the tree to be scored on top of it."""
Rows = Literal["all", "last", "none"]


class Target(ABC):
    """One open model with the KV cache of its own text, of which `length` positions are committed,
    and of up to `max_sequences - 1` others.
    """

    capabilities: Capabilities
    seconds_saved = 0.0
    """Seconds that the last pass had less to do because all of its nodes had left one early."""
    arena: KvArena | None = None
    """Where keys and values are, when each sequence's `state` is a table of its blocks."""

    def __init__(
        self, spec: ModelSpec, context_length: int, max_nodes: int, max_sequences: int = 1
    ) -> None:
        if max_sequences > 1 and not self.capabilities.sequences:
            raise BackendError(
                f"{max_sequences} texts at once were asked for, and the {self.capabilities.name} "
                "backend computes one; load with sequences=1, or with backend native"
            )
        self.spec = spec
        self.context_length = context_length
        """Most positions of each sequence."""
        self.max_nodes = max_nodes
        """Most nodes one forward pass may hold, roots included."""
        self.max_sequences = max_sequences
        self._num_sequences = 0
        self._closed = False
        self._curve: dict[int, float] | None = None
        self.own = self.open_sequence()
        """The target's own text: what `length`, `forward`, `commit` ... are about."""

    def open_sequence(self) -> KvSequence:
        """An empty text besides those that are open; BackendError when no more were planned."""
        self._check_open()
        return self.adopt(self._open_sequence(), 0)

    def idle_sequence(self) -> KvSequence:
        """An empty text that takes part in no pass, and does not count: to set others aside in.

        BackendError where there is no arena to keep them.
        """
        self._check_open()
        if self.arena is None:
            raise BackendError(f"the {self.capabilities.name} backend sets no texts aside")
        return KvSequence(self, self._open_sequence(), idle=True)

    def adopt(self, state: Any, length: int) -> KvSequence:
        """A new sequence around what the backend made for it."""
        sequence = KvSequence(self, state, length)
        self._num_sequences += 1
        if self._num_sequences > self.max_sequences:
            sequence.close()
            raise BackendError(
                f"{self.max_sequences} texts at once were planned and are open; load with "
                f"sequences={self.max_sequences + 1} or more"
            )
        return sequence

    def release(self, sequence: KvSequence) -> None:
        """Give a sequence's memory back; `KvSequence.close` calls this once."""
        self._num_sequences -= not sequence.idle
        self._truncate(sequence, 0)

    @property
    def length(self) -> int:
        return self.own.length

    def forward(self, tree: TokenTree, *, rows: Rows = "all") -> Logits:
        """Score a tree on top of the committed positions.

        Returns logits, [n, vocab] f32 ("all"), [1, vocab] ("last": of the last node) or [0, vocab]
        ("none"). The array is the target's own and is overwritten by the next call. Nothing is
        committed. Raises ContextOverflowError when the tree does not fit, BackendError when it is
        malformed.
        """
        return self.forward_batch(((self.own, tree),), rows=rows)

    def forward_batch(self, parts: Sequence[Part], *, rows: Rows = "all") -> Logits:
        """Score trees on top of different sequences, all in one pass over the weights.

        Logits are those of the first tree's nodes, then the second's, ...; the rest is as for
        `forward`. Each sequence may be given once.
        """
        alone = len(parts) == 1  # every step of one text
        num_nodes = len(parts[0][1]) if alone else sum(len(tree) for _, tree in parts)
        if not 1 <= num_nodes <= self.max_nodes:
            raise BackendError(
                f"a forward pass was asked for {num_nodes} nodes; "
                f"this target takes 1 to {self.max_nodes}"
            )
        if not alone and len({id(sequence) for sequence, _ in parts}) < len(parts):
            raise BackendError("a forward pass takes one tree of each sequence")
        for sequence, tree in parts:
            self._check_part(sequence, tree)
        for sequence, _ in parts:
            sequence.expect(None)
        logits = self._forward(parts, rows)
        for sequence, tree in parts:
            sequence.expect(tree)
        return logits

    def _check_part(self, sequence: KvSequence, tree: TokenTree) -> None:
        self.check(sequence, tree.tokens)
        if sequence.length + len(tree) > self.context_length:
            raise ContextOverflowError(
                f"{sequence.length} committed and {len(tree)} new tokens do not fit a context of "
                f"{self.context_length} tokens; load with a larger --context"
            )
        parents = tree.parents.tolist()  # a few numbers: arrays would take longer to set up
        if (
            not parents
            or parents[0] != -1
            or any(not 0 <= parent < node for node, parent in enumerate(parents[1:], 1))
        ):
            raise BackendError(
                "a token tree's parents must come before their children, and only node 0 is a root"
            )

    def forward_until(
        self,
        layer: int,
        tokens: Sequence[int],
        parents: Sequence[int],
        *,
        vocab: int | None = None,
        rows: Rows = "last",
    ) -> Logits:
        """`KvSequence.forward_until` of the target's own text."""
        return self.own.forward_until(layer, tokens, parents, vocab=vocab, rows=rows)

    def has_adapter(self, layer: int) -> bool:
        """Whether exits after this layer can go through an adapter."""
        del layer
        return False

    def adapt(self, layer: int, matrix: NDArray[np.float16]) -> None:
        """Put a matrix [dim, dim] between the exit after `layer` and the head, for passes that ask
        for it; where the backend has `early_exit`. No plan counts it.
        """
        raise NotImplementedError

    def trace(
        self, tokens: NDArray[np.int32], layers: Sequence[int], out: NDArray[np.float32]
    ) -> None:
        """Commit at most `prefill_chunk` tokens of the target's own text, and fill `out` [layers
        and one, tokens, dim] with the residual streams after these layers, ascending, and after the
        last; where the backend has `early_exit`.
        """
        raise NotImplementedError

    def head(self, streams: NDArray[np.float32], adapted: int | None = None) -> Logits:
        """Logits [n, vocab] of at most `max_nodes` residual streams [n, dim], through a layer's
        adapter if it is named; where the backend has `early_exit`.
        """
        raise NotImplementedError

    @property
    def early_room(self) -> int:
        """Nodes that `forward_until` can still take before a commit, of all texts together."""
        return 0

    @property
    def maxima(self) -> Logits | None:
        """The largest of each tile of the logits that a pass returned last, so that the best ones
        are found without reading the rest.

        [rows, ceil(vocab / TILE)] f32, NaN for a tile that holds one; the target's own, as the
        logits are. None from a backend that does not find them.
        """
        return None

    def limit_threads(self, most: int | None) -> None:  # noqa: B027 - not all backends can
        """Compute passes on at most so many of the planned threads; None: on as many as ever."""

    @property
    def kv_kind(self) -> str:
        """What must be equal for keys and values to be the same bytes, beside the model: how they
        are computed and laid out. "" where there is no arena.
        """
        return ""

    def commit(self, path: Sequence[int]) -> None:
        """`KvSequence.commit` of the target's own text."""
        self.own.commit(path)

    def truncate(self, length: int) -> None:
        """`KvSequence.truncate` of the target's own text."""
        self.own.truncate(length)

    def prefill(
        self,
        tokens: Sequence[int] | NDArray[np.int32],
        *,
        progress: Progress | None = None,
        chunk: int | None = None,
    ) -> None:
        """`KvSequence.prefill` of the target's own text."""
        self.own.prefill(tokens, progress=progress, chunk=chunk)

    @property
    def prefill_chunk(self) -> int:
        """Most tokens one prefill step may hold."""
        return self.max_nodes

    def cost_curve(
        self, progress: Progress | None = None, *, trials: int = 5, least: bool = False
    ) -> dict[int, float]:
        """Seconds of one forward pass by number of nodes, measured once on the committed positions.

        Lower quartiles of alternating passes over chains, at least `trials` of each, or, with
        `least`, the shortest: what other programs took is not in them. Nothing stays committed.
        """
        if self._curve is None:
            self._curve = pass_times(self, progress, trials=trials, least=least)
        return self._curve

    def curve_sizes(self) -> tuple[int, ...]:
        """Numbers of nodes the cost curve is measured for."""
        room = min(self.max_nodes, self.context_length - self.length)
        return tuple(size for size in _CURVE_SIZES if size <= room)

    def time_pass(self, num_nodes: int) -> float:
        """Seconds of one forward pass over a chain; nothing of it stays."""
        tree = TokenTree.chain([(7 * i) % self.spec.vocab_size for i in range(num_nodes)])
        start = time.perf_counter()
        self.forward(tree)
        seconds = time.perf_counter() - start
        self.own.expect(None)
        return seconds

    def close(self) -> None:
        """Give back everything this target holds; using it afterwards is an error."""
        if not self._closed:
            self._closed = True
            self._close()

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("this target was closed and holds no weights; load the model again")

    def check(self, sequence: KvSequence, tokens: NDArray[np.int32]) -> None:
        """Raise BackendError for what a pass cannot work with."""
        self._check_open()
        if sequence.target is not self or sequence.closed:
            raise BackendError("this sequence was closed, or is another target's")
        if sequence.idle:
            raise BackendError("this sequence was set aside; swap it with one that is at work")
        small = tokens.tolist() if len(tokens) <= TILE else [tokens.min(), tokens.max()]
        if small and not 0 <= min(small) <= max(small) < self.spec.vocab_size:
            raise BackendError(f"token ids must lie in 0..{self.spec.vocab_size - 1}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def snapshot(self) -> Any:
        """A copy of the committed state that `restore` takes back."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Return to the state of a snapshot of this target."""

    def _open_sequence(self) -> Any:
        """What the backend keeps of an empty text; asked for once by this class' `__init__`, and
        again only where the backend has `sequences`.
        """
        return None

    def _fork(self, sequence: KvSequence, length: int) -> Any:
        """What the backend keeps of a text that begins like another, where it has `sequences`."""
        raise NotImplementedError

    @abstractmethod
    def _forward(self, parts: Sequence[Part], rows: Rows) -> Logits: ...

    def _forward_until(
        self,
        sequence: KvSequence,
        layer: int,
        tokens: Sequence[int],
        parents: Sequence[int],
        vocab: int | None,
        rows: Rows,
        adapted: bool,
    ) -> Logits:
        """`KvSequence.forward_until`, where the backend has `early_exit`."""
        raise NotImplementedError

    def _deepen(
        self, sequence: KvSequence, layer: int, vocab: int | None, rows: Rows, adapted: bool
    ) -> Logits:
        """`KvSequence.deepen`, where the backend has `early_exit`."""
        raise NotImplementedError

    def _prefill(self, sequence: KvSequence, tokens: NDArray[np.int32]) -> None:
        """Compute and keep the KV of a chain; `length` still counts the positions before it."""
        self._forward(((sequence, TokenTree.chain(tokens)),), "none")
        self._commit(sequence, range(len(tokens)))

    @abstractmethod
    def _commit(self, sequence: KvSequence, path: Sequence[int]) -> None: ...

    @abstractmethod
    def _truncate(self, sequence: KvSequence, length: int) -> None: ...

    def _close(self) -> None:  # noqa: B027 (most backends need nothing here)
        """Release memory and files."""
