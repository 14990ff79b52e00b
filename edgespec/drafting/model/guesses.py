"""What a draft model thinks may come: a tree of tokens that grows while the text does.

The node to look behind next is the one likeliest to be part of the text, as in "DySpec: Faster
Speculative Decoding with Dynamic Token Tree Structure". So a clear text is followed far ahead, past
what is being verified ("PEARL: Parallel Speculative Decoding with Adaptive Draft Length",
post-verify), and at a draft that is hardly surer than its runner-up both are followed ("SpecBranch:
Speculative Decoding via Hybrid Drafting and Rollback-Aware Branch Parallelism").
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from edgespec.drafting.model.model_drafter import Draw
from edgespec.drafting.tree import DraftTree

LEAST = 0.02
"""Nodes less likely than this to be part of the text are not grown."""
LEAST_SECOND = 0.04
"""Runners-up less likely than this are left out."""
LEAST_BESIDE = 0.2
"""A node is looked behind beside another if it has this part of the chance that is asked for."""
MOST_AT_ONCE = 5
"""Nodes that are considered for that."""
MOST = 64
"""Nodes of a tree."""


class Guess:
    """A token that may come, and what a model said comes after it."""

    __slots__ = ("asked", "children", "draw", "given", "parent", "token")

    def __init__(self, token: int, parent: Guess | None, given: float) -> None:
        self.token = token
        self.parent = parent
        self.given = given
        """How likely it comes, given that its parent does."""
        self.children: list[Guess] = []
        self.draw: Draw | None = None
        self.asked = False
        """Whether what follows was asked for, answered or not."""


class Guesses:
    """The tree, whose root is the text's last token."""

    def __init__(self, token: int = 0) -> None:
        self.root = Guess(token, None, 1.0)

    def advance(self, tokens: Sequence[int]) -> list[tuple[Draw, int]]:
        """The text grew by these tokens: what they make impossible is dropped; returns what was
        said where each came.
        """
        told = []
        for token in tokens:
            node = self.root
            if node.draw is not None:
                told.append((node.draw, token))
            found = next((child for child in node.children if child.token == token), None)
            self.root = Guess(token, None, 1.0) if found is None else found
            self.root.parent = None
        return told

    def holds(self, node: Guess) -> bool:
        """Whether a node is still possible."""
        while node.parent is not None:
            node = node.parent
        return node is self.root

    def next(self, room: int = 0, least: float = LEAST) -> list[Guess]:
        """The nodes to look behind now, likeliest first; none when none is as likely as `least`.

        More than one where their paths, below what they share, have at most `room` nodes: a pass
        over few costs little more than one over one.
        """
        waiting, size = [], 0
        for node, chance in self._nodes():
            size += 1
            if not node.asked and chance > LEAST_BESIDE * least:
                waiting.append((chance, size, node))
        waiting.sort(reverse=True)
        if not waiting or waiting[0][0] <= least or size >= MOST:
            return []
        found = [waiting[0][2]]
        paths = [self.path(found[0])]
        for _, _, node in waiting[1 : MOST_AT_ONCE + 1]:
            path = self.path(node)
            if _num_nodes([*paths, path]) <= room:
                found.append(node)
                paths.append(path)
        return found

    def chance(self, node: Guess) -> float:
        """How likely a node is part of the text; 0 when that is impossible."""
        chance = 1.0
        while node.parent is not None:
            chance *= node.given
            node = node.parent
        return chance if node is self.root else 0.0

    def path(self, node: Guess) -> list[int]:
        """The tokens from the root, which is left out, to a node."""
        tokens = []
        while node.parent is not None:
            tokens.append(node.token)
            node = node.parent
        return tokens[::-1]

    def grow(self, node: Guess, draw: Draw, first: float, second: float) -> None:
        """A model was asked what follows a node; the chances are those of its two answers."""
        node.draw = draw
        node.children.append(Guess(draw.first, node, first))
        if second * self.chance(node) > LEAST_SECOND:
            node.children.append(Guess(draw.second, node, min(second, 1.0 - first)))

    @property
    def size(self) -> int:
        """Nodes besides the root."""
        return sum(1 for _ in self._nodes()) - 1

    def tree(self, max_nodes: int, source: int) -> DraftTree:
        """The likeliest nodes, at most `max_nodes` besides the root, surest first."""
        order, ties = [(-1.0, 0, self.root, -1)], count(1)
        tokens: list[int] = []
        parents: list[int] = []
        given: list[float] = []
        while order and len(tokens) <= max_nodes:
            chance, _, node, parent = heapq.heappop(order)
            for child in node.children:
                heapq.heappush(order, (chance * child.given, next(ties), child, len(tokens)))
            tokens.append(node.token)
            parents.append(parent)
            given.append(node.given if parent >= 0 else 1.0)
        sources = np.full(len(tokens), source, np.uint8)
        sources[0] = 0
        return DraftTree(
            np.array(tokens, np.int32),
            np.array(parents, np.int16),
            np.array(given, np.float32),
            sources,
        )

    def _nodes(self) -> Iterator[tuple[Guess, float]]:
        """All nodes with how likely each is part of the text."""
        waiting = [(self.root, 1.0)]
        while waiting:
            node, chance = waiting.pop()
            yield node, chance
            waiting += [(child, chance * child.given) for child in node.children]


def _num_nodes(paths: Sequence[Sequence[int]]) -> int:
    """Nodes of several paths below what they share."""
    shared = len(os.path.commonprefix([[*path] for path in paths]))
    return len({tuple(path[:end]) for path in paths for end in range(shared + 1, len(path) + 1)})
