"""The seam between the decode loop and whatever computes logits.

A backend opens a model and gives back a `Target`. The decode loop asks it for one thing, `forward`:
the logits of small trees of tokens, each on top of a `KvSequence`. Keeping one path of a tree,
forgetting positions, forking and copying are the sequence's methods. Shared code here and in
`sequence.py` checks arguments and phrases errors; a backend fills the hooks whose names start with
an underscore, here and in `SequenceHost`.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import CompiledPass, Logits, Pass, Progress, Rows, TokenTree
from edgespec.backends.sequence import KvSequence, SequenceHost
from edgespec.backends.store import SequenceStore
from edgespec.errors import BackendError, ContextOverflowError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.spec import ModelSpec

Part = tuple[KvSequence, TokenTree]
"""A sequence, and the tree to be scored on top of it."""
_FEW = 16
"""So few numbers are checked faster as a list than as an array."""


class Target(SequenceHost):
    """One open model and up to `max_sequences` sequences, of which one is open from the start."""

    store: SequenceStore | None = None
    """Where what sequences have committed is, when they can be set aside and put back."""

    def __init__(
        self, spec: ModelSpec, context_length: int, max_nodes: int, max_sequences: int = 1
    ) -> None:
        if max_sequences > 1 and not self.capabilities.sequences:
            raise BackendError(
                f"{max_sequences} texts at once were asked for, and the {self.capabilities.name} "
                "backend computes one; load with sequences=1, or with backend native"
            )
        self.spec = spec
        self._num_readable = spec.num_readable
        self.context_length = context_length
        self.max_nodes = max_nodes
        """Most nodes one forward pass may hold, roots included."""
        self.max_sequences = max_sequences
        self._num_sequences = 0
        self._closed = False
        self.own = self.open_sequence()
        """The sequence that is open from the start."""

    def open_sequence(self) -> KvSequence:
        """An empty sequence besides those that are open; BackendError when no more were planned."""
        self._check_open()
        return self.adopt(self._open_sequence(), 0)

    def idle_sequence(self) -> KvSequence:
        """An empty sequence that takes part in no pass, and does not count: to set others aside in.

        BackendError where there is no store to keep them.
        """
        self._check_open()
        if self.store is None:
            raise BackendError(f"the {self.capabilities.name} backend sets no texts aside")
        return KvSequence(self, self._open_sequence(), idle=True)

    def adopt(self, state: Any, length: int) -> KvSequence:
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
        self._num_sequences -= not sequence.idle
        self._truncate(sequence, 0)

    def forward(self, parts: Sequence[Part], *, rows: Rows = "all") -> Pass:
        """Score trees on top of the committed positions of different sequences, all in one pass
        over the weights.

        The pass' rows are those of the first tree's nodes, then the second's, ... ("all"), of the
        last node ("last"), or there are none ("none"). Nothing is committed: each sequence can
        commit a path of its tree until its next pass. Raises ContextOverflowError when a tree does
        not fit, BackendError when it is malformed or a sequence is given twice.
        """
        alone = len(parts) == 1  # every step of one sequence
        num_nodes = len(parts[0][1].tokens) if alone else sum(len(tree) for _, tree in parts)
        if not 1 <= num_nodes <= self.max_nodes:
            raise BackendError(
                f"a forward pass was asked for {num_nodes} nodes; "
                f"this target takes 1 to {self.max_nodes}"
            )
        if not alone and len({id(sequence) for sequence, _ in parts}) < len(parts):
            raise BackendError("a forward pass takes one tree of each sequence")
        checked = [self._check_part(sequence, tree) for sequence, tree in parts]
        for sequence, _ in parts:
            sequence.expect(())
        found = self._forward(parts, rows)
        first, hidden = 0, found.hidden
        for (sequence, tree), parents in zip(parts, checked, strict=True):
            sequence.expect(parents)
            if hidden is not None and sequence.follower is not None:
                sequence.follower.passed(tree.tokens, hidden[first : first + len(tree)])
            first += len(tree)
        return found

    def _check_part(self, sequence: KvSequence, tree: TokenTree) -> list[int]:
        """A tree's parents, which are as they should be."""
        self.check(sequence, tree.tokens)
        if sequence.length + len(tree.tokens) > self.context_length:
            raise ContextOverflowError(
                f"{sequence.length} committed and {len(tree)} new tokens do not fit a context of "
                f"{self.context_length} tokens; load with a larger --context"
            )
        parents: list[int] = tree.parents.tolist()
        if parents != [-1] and (
            not parents
            or parents[0] != -1
            or any(not 0 <= parent < node for node, parent in enumerate(parents[1:], 1))
        ):
            raise BackendError(
                "a token tree's parents must come before their children, and only node 0 is a root"
            )
        return parents

    def check(self, sequence: KvSequence, tokens: NDArray[np.int32]) -> None:
        self._check_open()
        if not sequence.belongs_to(self):
            raise BackendError("this sequence was closed, or is another target's")
        if sequence.idle:
            raise BackendError("this sequence was set aside; swap it with one that is at work")
        small = tokens.tolist() if len(tokens) <= _FEW else [tokens.min(), tokens.max()]
        if small and not 0 <= min(small) <= max(small) < self._num_readable:
            raise BackendError(f"token ids must lie in 0..{self._num_readable - 1}")

    @property
    def prefill_chunk(self) -> int:
        return self.max_nodes

    @property
    def kv_kind(self) -> str:
        """What must be equal for keys and values to be the same bytes, beside the model: how they
        are computed and laid out. "" where there is no store.
        """
        return ""

    def adapt(self, layer: int, matrix: NDArray[np.float16]) -> None:
        """Put a matrix [dim, dim] between the exit after `layer` and the head, for passes that ask
        for it; where the backend has `early_exit`. No plan counts it.
        """
        raise NotImplementedError

    def open_head(self, file: ModelFile, plan: Plan, progress: Progress | None = None) -> Target:
        """A draft head that reads this target's streams, as a target of its own whose trees have
        states; passes leave what it reads from here on. Where the backend has `draft_heads`; the
        head is to be closed first.
        """
        raise NotImplementedError

    def head(self, streams: NDArray[np.float32], adapted: int | None = None) -> Logits:
        """Logits [n, vocab] of at most `max_nodes` residual streams [n, dim], through a layer's
        adapter if it is named; where the backend has `early_exit`.
        """
        raise NotImplementedError

    def compiled_pass(self, sequence: KvSequence, most_tokens: int) -> CompiledPass | None:
        """How a kernel computes passes over a sequence that grows by so many tokens, nodes that are
        rejected included; None where it takes Python. Afterwards `compiled_passes` takes note.
        """
        del sequence, most_tokens
        return None

    def compiled_passes(self, sequence: KvSequence, num_tokens: int, seconds: float) -> None:
        """A kernel has committed so many tokens; a plain pass took so long."""
        del seconds
        sequence.filled(sequence.length + num_tokens)

    def forget_uses(self) -> None:  # noqa: B027 (most backends need nothing here)
        """Forget which weights on disk passes asked for until now, which were no text's."""

    def close(self) -> None:
        """Give back everything this target holds; using it afterwards is an error."""
        if not self._closed:
            self._closed = True
            self._close()

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("this target was closed and holds no weights; load the model again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_sequence(self) -> Any:
        """What the backend keeps of an empty sequence; asked for once by this class' `__init__`,
        and again only where the backend has `sequences`.
        """
        return None

    @abstractmethod
    def _forward(self, parts: Sequence[Part], rows: Rows) -> Pass: ...

    def _prefill(
        self,
        sequence: KvSequence,
        tokens: NDArray[np.int32],
        states: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32] | None:
        found = self._forward(((sequence, TokenTree.chain(tokens, states)),), "none")
        self._commit(sequence, range(len(tokens)))
        return found.hidden

    def _close(self) -> None:  # noqa: B027 (most backends need nothing here)
        """Release memory and files."""


def lender_of(sequence: KvSequence, model: Target) -> KvSequence:
    """Whose committed keys and values a draft head's sequence reads; BackendError where there are
    none.
    """
    lender = sequence.lender
    if lender is None or not lender.belongs_to(model) or not lender.length:
        raise BackendError(
            "this draft head reads keys and values of the model's text, and has no such text with "
            "committed tokens"
        )
    return lender


def check_not_forked(process: int, engine: str) -> None:
    """Raise BackendError in a fork of the process that opened an engine: its threads are not here,
    and who waits for them waits for ever.
    """
    if os.getpid() != process:
        raise BackendError(
            f"this model was loaded before the process was forked, and {engine} stays with the "
            "parent; load it in the child"
        )
