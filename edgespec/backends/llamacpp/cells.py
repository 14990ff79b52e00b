"""Which of llama.cpp's sequences hold which cells of its cache.

Every text has a sequence, and the branches of its tree borrow others from a pool: a branch holds
the cells of its text's committed positions too, which it shares, and keeps them for the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import TokenTree
from edgespec.errors import BackendError
from edgespec.system.records import dataclass

MOST_SEQUENCES = 256
"""Of one context, in llama.cpp."""


def num_sequences(texts: int, nodes: int) -> tuple[int, int]:
    """Sequences for texts and for branches; one text more where one may begin like another before
    it has let go of what it was.
    """
    mains = texts + (texts > 1)
    return mains, max(0, min(nodes - 1, MOST_SEQUENCES - mains))


@dataclass(slots=True, eq=False)
class Text:
    """One text's place in the cache."""

    main: int = -1
    """The sequence that holds what is committed; -1 while that is nothing."""
    ids: list[int] = field(default_factory=list)
    """Committed tokens, for models that must compute them again."""
    nodes: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Tokens of the last pass, whose cells are not committed yet."""
    parents: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    leaves: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    """Of each leaf: the main one, then branches."""

    def expect(self, tree: TokenTree, leaves: list[int], sequences: list[int]) -> None:
        """A pass over this tree is computed, and may be committed."""
        self.nodes, self.parents = tree.tokens.copy(), tree.parents.copy()
        self.leaves, self.sequences = leaves, sequences

    def settle(self) -> None:
        """Nothing waits for a commit any more."""
        self.nodes, self.leaves, self.sequences = self.nodes[:0], [], []

    def sequence_of(self, node: int) -> int:
        """A sequence that a node of the last pass belongs to: that of any leaf below it."""
        for leaf, sequence in zip(self.leaves, self.sequences, strict=True):
            while leaf > node:
                leaf = int(self.parents[leaf])
            if leaf == node:
                return sequence
        raise AssertionError("every node has a leaf below it")


@dataclass(slots=True, eq=False)
class _Branch:
    sequence: int
    owner: Text | None = None
    held: int = 0
    """Committed positions of its owner that it holds."""


class Cells:
    """The sequences of one context, shared out among texts and branches."""

    def __init__(self, api: Any, memory: Any, texts: int, nodes: int) -> None:
        self._api, self._memory = api, memory
        mains, branches = num_sequences(texts, nodes)
        self._free = list(reversed(range(mains)))
        self._branches = [_Branch(mains + number) for number in range(branches)]

    def begin(self, text: Text) -> None:
        """Give a text a sequence if it has none; raises BackendError when all are taken."""
        if text.main < 0:
            if not self._free:
                raise BackendError(
                    "llama.cpp has no sequence left for another text; close one, or load with more "
                    "sequences"
                )
            text.main = self._free.pop()

    def branches(self, text: Text, count: int, length: int) -> list[int]:
        """Sequences for so many branches, which hold the first `length` positions of the text.

        Raises BackendError when texts that wait for a commit have taken too many.
        """
        if not count:  # plain decoding, every step
            return []
        found = [branch for branch in self._branches if branch.owner is text][:count]
        for branch in self._branches:
            if len(found) == count:
                break
            owner = branch.owner
            if owner is None or (owner is not text and not len(owner.nodes)):
                self._remove(branch.sequence, -1)
                branch.owner, branch.held = text, 0
                found.append(branch)
        if len(found) < count:
            raise BackendError(
                f"llama.cpp's {len(self._branches)} sequences for branches are in use; commit or "
                "drop what was computed for other texts first"
            )
        for branch in found:
            if branch.held < length:
                self._copy(text.main, branch.sequence, branch.held, length)
                branch.held = length
        return [branch.sequence for branch in found]

    def keep(self, text: Text, path: Sequence[int], length: int) -> None:
        """Drop all nodes of the last pass but a path, which becomes the main sequence's."""
        keep = length + len(path)
        if len(text.leaves) > 1:
            chosen = text.sequence_of(path[-1])
            if chosen != text.main:
                self._remove(text.main, length)
                self._copy(chosen, text.main, length, keep)
            for sequence in text.sequences[1:]:
                self._remove(sequence, length)
        self._remove(text.main, keep)

    def forget(self, text: Text, length: int) -> bool:
        """Hold the first `length` positions of a text; False where the model cannot."""
        waiting, start = text.sequences, length or -1
        text.settle()
        if text.main < 0:
            return True
        for branch in self._branches:
            if branch.owner is text:
                if branch.held > length or branch.sequence in waiting:
                    self._remove(branch.sequence, start)
                    branch.held = min(branch.held, length)
                if not length:
                    branch.owner = None
        kept = self._remove(text.main, start)
        if not length:
            self._free.append(text.main)
            text.main = -1
        return kept

    def fork(self, source: Text, length: int) -> Text:
        """A text that shares the first `length` positions of another."""
        made = Text(ids=source.ids[:length])
        if length:
            self.begin(made)
            self._copy(source.main, made.main, 0, length)
        return made

    def _copy(self, source: int, target: int, start: int, end: int) -> None:
        self._api.llama_memory_seq_cp(self._memory, source, target, start, end)

    def _remove(self, sequence: int, start: int) -> bool:
        return bool(self._api.llama_memory_seq_rm(self._memory, sequence, start, -1))
