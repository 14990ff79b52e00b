"""Passes of a target over one sequence, for those who compare or time logits and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.backends.passes import Logits, Rows, TokenTree


class Passes:
    """Of a target over its own sequence; a context manager that closes the target."""

    def __init__(self, target: Target) -> None:
        self.target, self.sequence = target, target.own

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self.sequence.length

    def score(self, tokens: Sequence[int] | NDArray[np.int32], rows: Rows = "all") -> Logits:
        """Logits [n, vocab] of a chain on top of what is committed, or of its last row."""
        return self.score_tree(TokenTree.chain(tokens), rows)

    def score_tree(self, tree: TokenTree, rows: Rows = "all") -> Logits:
        """Logits [nodes, vocab] of a tree on top of what is committed."""
        return self.sequence.forward(tree, rows=rows).logits

    def score_and_maxima(self, tokens: Sequence[int]) -> tuple[Logits, Logits | None]:
        """The logits of a chain, and the largest of each of their tiles."""
        found = self.sequence.forward(TokenTree.chain(tokens))
        return found.logits, found.maxima

    def commit(self, count: int) -> None:
        """Keep the first tokens of the chain, or the root of the tree, that was scored last."""
        self.sequence.commit(range(count))

    def prefill(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.sequence.prefill(tokens)

    def truncate(self, length: int = 0) -> None:
        self.sequence.truncate(length)

    def close(self) -> None:
        self.target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
