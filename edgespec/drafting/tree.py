"""Trees of hoped-for tokens, and what verification made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgespec.system.records import dataclass


class Path(NamedTuple):
    """Tokens that are hoped to follow the text, one after the other."""

    tokens: list[int]
    chance: float = 1.0
    """How likely all of them do."""
    node: int = 0
    """The last one's in the tree that says so."""


NO_PATH = Path([])


@dataclass(slots=True)  # not frozen: that would triple the time it takes to make one
class DraftTree:
    """Proposed continuations in flat arrays; node 0 is the last accepted token, its parent -1.

    tokens int32 [n]; parents int16 [n], `parents[i] < i`; p_accept float32 [n], the drafter's
    estimate that the node is accepted given that its parent was (1.0 for node 0); sources uint8
    [n], an index into the engine's table of drafters (0 for the root).
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int16]
    p_accept: NDArray[np.float32]
    sources: NDArray[np.uint8]

    @classmethod
    def root(cls, token: int) -> Self:
        """A tree that proposes nothing: one pass over it is plain decoding."""
        return cls(
            np.array([token], np.int32),
            np.array([-1], np.int16),
            np.ones(1, np.float32),
            np.zeros(1, np.uint8),
        )

    @classmethod
    def chain(
        cls, root: int, tokens: Sequence[int], p_accept: Sequence[float], source: int
    ) -> Self:
        """A tree without branches: `tokens` follow `root` one after the other."""
        num_nodes = len(tokens) + 1
        return cls(
            np.array([root, *tokens], np.int32),
            np.arange(-1, num_nodes - 1, dtype=np.int16),
            np.array([1.0, *p_accept], np.float32),
            np.array([0] + [source] * len(tokens), np.uint8),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, num_nodes: int) -> DraftTree:
        """The first `num_nodes` nodes, root included: a tree, as parents precede their children."""
        if num_nodes == len(self.tokens):
            return self
        return DraftTree(
            self.tokens[:num_nodes],
            self.parents[:num_nodes],
            self.p_accept[:num_nodes],
            self.sources[:num_nodes],
        )

    def surest(self) -> Path:
        """The path that follows the first child of each node, which is its surest."""
        tokens, chance, last = [], 1.0, 0
        for node, parent in enumerate(self.parents.tolist()):
            if parent == last and node:
                tokens.append(int(self.tokens[node]))
                chance, last = chance * float(self.p_accept[node]), node
        return Path(tokens, chance, last)

    def end_of_knowledge(self) -> Path:
        """The part of the surest path whose end is likeliest to come and not to be followed by what
        the tree says.
        """
        tokens: list[int] = []
        chance, best = 1.0, NO_PATH
        most, last = 0.0, 0
        for node, parent in enumerate([*self.parents.tolist(), None]):
            if (parent == last and node) or parent is None:
                given = 0.0 if parent is None else float(self.p_accept[node])
                if chance * (1.0 - given) > most:
                    most, best = chance * (1.0 - given), Path([*tokens], chance, last)
                if parent is not None:
                    tokens.append(int(self.tokens[node]))
                    chance, last = chance * given, node
        return best

    def best_chain(self) -> DraftTree:
        """The path that follows the first child of each node, which is its surest: for targets
        that score chains only.
        """
        path = [0]
        for node, parent in enumerate(self.parents.tolist()):
            if parent == path[-1]:
                path.append(node)
        return self.only(path)

    def only(self, nodes: list[int]) -> DraftTree:
        """Some of the nodes, in their order, the root and each one's parent among them."""
        if len(nodes) == len(self):
            return self
        places = np.full(len(self) + 1, -1, np.int16)  # the last one's is the root's parent's
        places[nodes] = np.arange(len(nodes))
        parents = places[self.parents[nodes]]
        return DraftTree(self.tokens[nodes], parents, self.p_accept[nodes], self.sources[nodes])


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The target's likeliest next tokens at each node of a verified tree, rejected nodes too."""

    tokens: NDArray[np.int32]
    """[nodes, k], likeliest first."""
    logits: NDArray[np.float32]
    """[nodes, k], before temperature and penalties."""


@dataclass(slots=True)
class StepOutcome:
    """What verification made of a tree: accepted nodes, root first, and the token after them."""

    tree: DraftTree
    path: list[int]
    bonus: int
    new_tokens: Sequence[int] | NDArray[np.int32] = ()
    """Accepted draft tokens, then the bonus token: what the step appends to the text."""
    top: TopTokens | None = None
    """Present when some drafter's `wants_top` asks for it."""
