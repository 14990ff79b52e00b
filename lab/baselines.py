"""How llama.cpp drafts without a model, written anew from what its documentation and flags say.

For comparison on the same transcripts; both draft one chain, with the lengths llama.cpp takes when
none are given. Prompt lookup is in `edgespec/tools/replay/prompt_lookup.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter
from edgespec.drafting.tree import DraftTree, StepOutcome


class _TextDrafter(Drafter):
    """Keeps the whole text as a list."""

    size_bytes = 0

    def __init__(self) -> None:
        self.text: list[int] = []

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.text = [int(token) for token in tokens]

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.text += map(int, tokens)

    def chain(self, tokens: Sequence[int], max_nodes: int) -> DraftTree:
        drafted = list(tokens[:max_nodes])
        return DraftTree.chain(self.text[-1], drafted, [1.0] * len(drafted), 1)


class NgramSimpleDrafter(_TextDrafter):
    """`ngram-simple`: up to 48 tokens after the latest earlier copy of the text's last 12, none
    when fewer than 12 follow it.
    """

    name = "ngram-simple"
    key_tokens = 12
    most_tokens = 48

    def propose(self, max_nodes: int) -> DraftTree:
        text, size = self.text, self.key_tokens
        if len(text) <= size + self.most_tokens + 1:
            return self.chain([], max_nodes)
        key = text[-size:]
        for start in range(len(text) - size - 1, -1, -1):
            if text[start] == key[0] and text[start : start + size] == key:
                found = text[start + size : start + size + self.most_tokens]
                return self.chain(found if len(found) >= size else [], max_nodes)
        return self.chain([], max_nodes)


class NgramModDrafter(_TextDrafter):
    """`ngram-mod`: a pool, shared by all texts, of which token last followed 24 tokens; a draft is
    looked up token by token, to 64, and thrown away when it ends before 48.

    Prompts enter at once, what is written in pieces of 32. The pool is wiped when a prompt leaves
    a quarter of its 4 Mi places taken, or five drafts in a row were right by less than a quarter.
    """

    name = "ngram-mod"
    key_tokens = 24
    least_tokens = 48
    most_tokens = 64
    piece = 32
    places = 4 * 2**20

    def __init__(self) -> None:
        super().__init__()
        self.pool: dict[tuple[int, ...], int] = {}
        self._entered = 0
        self._failures = 0

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super().reset(tokens)
        self._entered = self.key_tokens
        self._enter()
        if len(self.pool) > self.places // 4:
            self.pool.clear()

    def _enter(self) -> None:
        for end in range(self._entered, len(self.text)):
            self.pool[tuple(self.text[end - self.key_tokens : end])] = self.text[end]
        self._entered = max(len(self.text), self.key_tokens)

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super().extend(tokens)
        if len(self.text) - self._entered >= self.piece:
            self._enter()

    def propose(self, max_nodes: int) -> DraftTree:
        window = self.text[-self.key_tokens :]
        drafted: list[int] = []
        while len(window) == self.key_tokens and len(drafted) < self.most_tokens:
            token = self.pool.get(tuple(window))
            if token is None:
                break
            drafted.append(token)
            window = [*window[1:], token]
        return self.chain(drafted if len(drafted) >= self.least_tokens else [], max_nodes)

    def observe(self, outcome: StepOutcome) -> None:
        drafted = len(outcome.tree) - 1
        if drafted:
            failed = len(outcome.path) - 1 < drafted / 4
            self._failures = self._failures + 1 if failed else 0
            if self._failures == 5:
                self.pool.clear()
                self._failures = 0
