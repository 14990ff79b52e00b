"""What drafters share that read the text in pieces and remember its last tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import GrownDrafter, feed_one
from edgespec.drafting.proposal import NOW, OWN, PROMPT, Proposal
from edgespec.drafting.tree import DraftTree, Path
from edgespec.system.addresses import int32_line, int32s_at, int64_rows, set_word, word
from edgespec.system.jit import inner_kernel

PIECE = 404
"""Tokens read at once, so that a long prompt is never copied whole."""
WINDOW, KEYS, ROWS, STORE = OWN, OWN + 3, OWN + 6, OWN + 9
"""Words of a text drafter's table: the text's last tokens with room for a piece behind them,
scratch for the keys of contexts, a table of followers; from the last on, a drafter's own.
"""
NOBODY = -1
"""Before the text's beginning."""


@inner_kernel
def write_behind(table: int, tokens: int, count: int) -> int:
    """Put a piece behind the text's last tokens; return how many these are."""
    window, new = int32_line(table, WINDOW), int32s_at(tokens, count)
    begin = len(int64_rows(table, KEYS))
    for place in range(count):
        window[begin + place] = new[place]
    return begin


@inner_kernel
def move_up(table: int, count: int) -> int:
    """Let the window begin with what are now the text's last tokens."""
    window = int32_line(table, WINDOW)
    for place in range(len(int64_rows(table, KEYS))):
        window[place] = window[place + count]
    set_word(table, NOW, (word(table, NOW) + count) % 2**30)
    return 0


class TextDrafter(GrownDrafter):
    """The text's last tokens, and stores of fixed size that a subclass brings.

    All bytes are taken at construction.
    """

    default_bytes = 2 * 2**20
    orders = 1
    """The longest context, in tokens."""

    def __init__(self, max_bytes: int = default_bytes, *, source: int = 1) -> None:
        super().__init__(max_bytes, source=source)
        self._keys = np.zeros((self.orders, 2), np.int64)
        self._window = np.full(self.orders + PIECE, NOBODY, np.int32)
        self._tail = self._window[: self.orders]
        """The text's last tokens; new ones go behind them in the window, and then move up."""
        self.table.bind(WINDOW, self._window)
        self.table.bind(KEYS, self._keys)

    @property
    def _fixed_bytes(self) -> int:
        return super()._fixed_bytes + self._keys.nbytes + self._window.nbytes

    @property
    def last_token(self) -> int:
        return int(self._tail[-1])

    @property
    def _now(self) -> int:
        """What rows that are written now are stamped with: grows with the text."""
        return self._words[NOW]

    @_now.setter
    def _now(self, now: int) -> None:
        self._words[NOW] = now % 2**30

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with these tokens as the text so far; what was learnt about kinds of nodes
        stays.
        """
        self._forget_proposal()
        self._tail.fill(NOBODY)
        self._forget()
        self._words[PROMPT] = 1
        self.extend(tokens)
        self._words[PROMPT] = 0

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """The text grew by these tokens."""
        for start in range(0, len(tokens), PIECE):
            self._feed(np.asarray(tokens[start : start + PIECE], np.int32))

    def _feed(self, tokens: NDArray[np.int32]) -> None:
        feed_one(self.table.address, np.ascontiguousarray(tokens))

    def propose_after(self, path: Path, max_nodes: int, scratch: Proposal) -> DraftTree:
        """What the stores know to follow, as if the text had grown by the path."""
        tail = self._tail.copy()
        try:
            self._tail[:] = np.append(tail, np.array(path.tokens, np.int32))[-len(tail) :]
            return super().propose_after(path, max_nodes, scratch)
        finally:
            self._tail[:] = tail

    @abstractmethod
    def _forget(self) -> None:
        """A new text begins."""
