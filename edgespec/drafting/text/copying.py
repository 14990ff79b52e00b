"""Drafts by copying from the prompt, for tasks that hand a text back with changes.

"Lossless Acceleration for Seq2seq Generation with Aggressive Decoding" (input-guided aggressive
decoding): the input is the draft of the output; after a mismatch the copy goes on where output and
input agree again. Here the copy does not wait for that: right after a mismatch it branches to where
it would go on had a token been replaced, inserted or dropped, and the next tokens tell which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import Kernels
from edgespec.drafting.text.copy_kernels import (
    COPY_STATE,
    CURSOR,
    HEADS,
    MOST_AGREEING,
    NUM_SKIPPED,
    PREVIOUS,
    PRIORS,
    SOURCE,
    expand_copy,
    feed_copy,
)
from edgespec.drafting.text_drafter import TextDrafter

_BYTES_PER_TOKEN = 12


class CopyDrafter(TextDrafter):
    """Proposes what comes next in the prompt, where the reply follows it.

    Of a prompt longer than its store it keeps the end.
    """

    name = "copy"
    orders = MOST_AGREEING
    priors = PRIORS
    kernels = Kernels(expand_copy, feed_copy)
    callable_from_kernels = True

    def __init__(self, max_bytes: int = TextDrafter.default_bytes, *, source: int = 1) -> None:
        super().__init__(max_bytes, source=source)
        self._state = np.zeros(4, np.int64)
        self._state[CURSOR] = -1
        capacity = (max_bytes - self._fixed_bytes - self._state.nbytes) // _BYTES_PER_TOKEN
        self._source = np.zeros(capacity, np.int32)
        self._previous = np.zeros(capacity, np.int32)
        self._heads = np.zeros(capacity, np.int32)
        self.table.bind(COPY_STATE, self._state)
        self.table.bind(SOURCE, self._source)
        self.table.bind(PREVIOUS, self._previous)
        self.table.bind(HEADS, self._heads)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with these tokens as the text to copy from, and so far the whole text."""
        self._words[NUM_SKIPPED] = max(len(tokens) - len(self._source), 0)
        super().reset(tokens)

    def _forget(self) -> None:
        self._state.fill(0)
        self._state[CURSOR] = -1
        self._heads.fill(0)

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays: exact, at most `max_bytes`, and the same from the start."""
        store = (self._state, self._source, self._previous, self._heads)
        return self._fixed_bytes + sum(buffer.nbytes for buffer in store)
