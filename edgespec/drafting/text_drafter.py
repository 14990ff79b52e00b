"""What drafters share that read the text in pieces and grow trees in Numba."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter
from edgespec.drafting.proposal import MOST_NODES, Proposal
from edgespec.drafting.rates import new_rates
from edgespec.drafting.tables.followers import NOBODY
from edgespec.drafting.tree import DraftTree, Path, StepOutcome
from edgespec.errors import OptionError

_PIECE = 512
"""Tokens counted at once, so that a long prompt is never copied whole."""


class TextDrafter(Drafter):
    """The text's last tokens, a proposal, and stores of fixed size that a subclass brings.

    The subclass fills in what the text, or a verified tree, teaches the stores and how a tree grows
    from them. All bytes are taken at construction. Raises OptionError when `max_bytes` is too small
    to be of use.
    """

    default_bytes = 2 * 2**20
    least_bytes = 64 * 1024
    orders = 1
    """The longest context, in tokens."""
    priors: Sequence[float]
    """For each kind of node, how often it is right until more is known."""

    def __init__(self, max_bytes: int = default_bytes, *, source: int = 1) -> None:
        if max_bytes < self.least_bytes:
            raise OptionError(
                f"the drafter {self.name} cannot work in {max_bytes} bytes; give it "
                f"{self.least_bytes} or more"
            )
        self.max_bytes = max_bytes
        self.source = source
        self._rates = new_rates(self.priors)
        self._proposal = Proposal(source)
        self._keys = np.zeros((self.orders, 2), np.int64)
        self._window = np.full(self.orders + _PIECE, NOBODY, np.int32)
        self._tail = self._window[: self.orders]
        """The text's last tokens; new ones go behind them in the window, and then move up."""

    @property
    def _fixed_bytes(self) -> int:
        small = (self._rates, self._keys, self._window)
        return self._proposal.size_bytes + sum(buffer.nbytes for buffer in small)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with these tokens as the text so far; what was learnt about kinds of nodes
        stays.
        """
        self._proposal.forget()
        self._tail.fill(NOBODY)
        self._forget()
        self.extend(tokens)

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """The text grew by these tokens."""
        for start in range(0, len(tokens), _PIECE):
            self._feed(tokens[start : start + _PIECE])

    def _feed(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        text = self._window[: self.orders + len(tokens)]
        text[self.orders :] = tokens
        self._learn_text(text, self.orders)
        self._tail[:] = text[len(tokens) :]

    def propose(self, max_nodes: int) -> DraftTree:
        """The likeliest continuations, at most `max_nodes` besides the root, best path first."""
        if self._tail[-1] < 0:
            raise OptionError(
                "a drafter has no text to continue; call reset() with the prompt first"
            )
        return self._proposal.tree(self._grow(min(max_nodes, MOST_NODES)))

    def propose_after(self, path: Path, max_nodes: int, scratch: Proposal) -> DraftTree:
        """What the stores know to follow, as if the text had grown by the path."""
        tail, own = self._tail.copy(), self._proposal
        try:
            self._tail[:] = np.append(tail, np.array(path.tokens, np.int32))[-len(tail) :]
            self._proposal = scratch
            return scratch.tree(self._grow(min(max_nodes, MOST_NODES)))
        finally:
            self._tail[:], self._proposal = tail, own

    def observe(self, outcome: StepOutcome) -> None:
        """Learn how often each kind of node was right, and what the verified tree teaches."""
        self._proposal.settle(outcome.new_tokens, self._rates)
        self._learn_outcome(outcome)

    @abstractmethod
    def _forget(self) -> None:
        """A new text begins."""

    def _learn_text(self, text: NDArray[np.int32], begin: int) -> None:
        """The text grew by text[begin:]; by default it teaches nothing."""
        del text, begin

    def _learn_outcome(self, outcome: StepOutcome) -> None:
        """A tree was verified; the text still ends with its root. By default it teaches nothing."""
        del outcome

    @abstractmethod
    def _grow(self, max_nodes: int) -> int:
        """Fill the proposal; return its number of nodes, the root included."""
