"""Drafts from the text's own repetitions, found by a suffix automaton.

"SAM Decoding: Speculative Decoding via Suffix Automaton", section 3. The automaton of prompt and
output grows by one token in O(1) amortised; the suffix link of the state of the whole text is the
longest suffix that occurred before, so the match needs no search and no cursor beside the automaton
itself. Prompt lookup ("Prompt Lookup Decoding", Saxena) is the special case of a fixed match length
and a single continuation.

Continuations are walked through the automaton, so different earlier occurrences branch, and a walk
that reaches the end of the text goes on at its suffix link: periodic text drafts as many periods as
asked. Where the match's followers leave room, those of shorter matches branch off too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import GrownDrafter, Kernels, feed_one
from edgespec.drafting.text.automaton import (
    BYTES_PER_TOKEN,
    EDGES,
    EDGES_PER_TOKEN,
    LAST,
    LENGTH,
    LINK,
    NUM_EDGES,
    NUM_STATES,
    NUM_TOKENS,
    PAST,
    SIZES,
    SLOTS,
    SLOTS_PER_TOKEN,
    STATES,
    STATES_PER_TOKEN,
    TEXT,
    feed_automaton,
)
from edgespec.drafting.text.continuations import expand_match
from edgespec.drafting.text.match_rates import PRIORS
from edgespec.drafting.text.past import PROMPT_TOKENS, Past

_FIRST_CAPACITY = 1024


class SuffixAutomatonDrafter(GrownDrafter):
    """Proposes what followed earlier occurrences of the text's longest repeated suffix.

    Its store grows by doubling, up to `max_bytes`; when that is full it is rebuilt from the latest
    half of the text, so older text is forgotten and no cap is ever exceeded. Rebuilding takes about
    a microsecond per token kept. A `past` is filled with each reply when that ends; it belongs to
    all sequences, and its bytes are part of every drafter's.
    """

    name = "suffix-automaton"
    follows = True
    priors = (*PRIORS, *PRIORS)
    kernels = Kernels(expand_match, feed_automaton)
    callable_from_kernels = True

    def __init__(
        self, max_bytes: int = 8 * 2**20, *, source: int = 1, past: Past | None = None
    ) -> None:
        super().__init__(max_bytes, source=source)
        self.past = past
        self._words[PAST] = past.table.address if past is not None else 0
        self._begin = self._told = 0
        """Where in the text the piece to be remembered begins, and where what is new in it does."""
        self._sizes = np.zeros(4, np.int64)
        self.table.bind(SIZES, self._sizes)
        # A rebuild holds one more copy of the tokens: 4 bytes each.
        self._most_tokens = (max_bytes - self._fixed_bytes) // (BYTES_PER_TOKEN + 4)
        self._allocate(min(_FIRST_CAPACITY, self._most_tokens))

    @property
    def _fixed_bytes(self) -> int:
        past_bytes = self.past.size_bytes if self.past is not None else 0
        return super()._fixed_bytes + self._sizes.nbytes + past_bytes

    @property
    def _num_tokens(self) -> int:
        return int(self._sizes[NUM_TOKENS])

    @property
    def last_token(self) -> int:
        return int(self._text[self._num_tokens - 1]) if self._num_tokens else -1

    @property
    def room(self) -> int:
        return len(self._text) - self._num_tokens

    def _allocate(self, capacity: int) -> None:
        """An empty automaton for texts of `capacity` tokens; sizes are the worst case, so nothing
        can overflow.
        """
        self._text = np.empty(capacity, np.int32)
        self._states = np.empty((STATES_PER_TOKEN * capacity + 1, 5), np.int32)
        self._edges = np.empty((EDGES_PER_TOKEN * capacity, 4), np.int32)
        self._slots = np.zeros(SLOTS_PER_TOKEN * capacity, np.int32)
        self._sizes[NUM_STATES] = 1
        self._sizes[NUM_EDGES] = 0
        self._sizes[LAST] = 0
        self._sizes[NUM_TOKENS] = 0
        self._states[0] = (-1, 0, -1, 0, -1)
        self.table.bind(TEXT, self._text)
        self.table.bind(STATES, self._states)
        self.table.bind(EDGES, self._edges)
        self.table.bind(SLOTS, self._slots)

    def _rebuild(self, tokens: NDArray[np.int32], capacity: int) -> None:
        """Start over with `tokens`, releasing the old arrays before the new ones are made; where
        memory is refused, without a text.
        """
        del self._text, self._states, self._edges, self._slots
        try:
            self._allocate(capacity)
        except MemoryError:
            self._allocate(1)
            raise
        self._feed(tokens)

    def _feed(self, tokens: NDArray[np.int32]) -> None:
        feed_one(self.table.address, tokens)

    def shrink(self) -> int:
        """Halve capacity and cap, and keep the latest tokens that fill half of what is left."""
        before, half = self.size_bytes, self._most_tokens // 2
        if half * BYTES_PER_TOKEN >= self.least_bytes // 2:
            self._forget_proposal()
            self._most_tokens = half
            capacity = min(half, max(len(self._text) // 2, 1))
            self._keep(min(self._num_tokens, max(capacity // 2, 1)), capacity)
        given = before - self.size_bytes
        return given + (self.past.shrink() if self.past is not None else 0)

    def _make_room(self, num_new: int) -> None:
        wanted = self._num_tokens + num_new
        if wanted <= len(self._text):
            return
        keep = self._num_tokens
        if wanted > self._most_tokens:
            keep = min(keep, max(self._most_tokens // 2, 1), self._most_tokens - num_new)
        self._keep(keep, min(self._most_tokens, max(2 * len(self._text), keep + num_new)))

    def _keep(self, num_tokens: int, capacity: int) -> None:
        """Start over with the latest tokens."""
        dropped = self._num_tokens - num_tokens
        self._begin, self._told = max(self._begin - dropped, 0), max(self._told - dropped, 0)
        self._rebuild(self._text[dropped : self._num_tokens].copy(), capacity)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with these tokens as the text so far; of a long text, the latest half of the
        capacity is kept.

        What was learnt about match lengths stays.
        """
        self._remember()
        ids = np.asarray(tokens, dtype=np.int32)
        if len(ids) > self._most_tokens:
            ids = ids[-max(self._most_tokens // 2, 1) :]
        capacity = min(self._most_tokens, max(_FIRST_CAPACITY, 2 * len(ids)))
        self._forget_proposal()
        self._rebuild(ids, capacity)
        self._told = len(ids)
        self._begin = max(len(ids) - PROMPT_TOKENS, 0)

    def _remember(self) -> None:
        """Put the reply, with the prompt's end, into the past."""
        end = self._num_tokens
        if self.past is not None and end > self._told:
            self.past.add(self._text[self._begin : end])
            self._told, self._begin = end, max(end - PROMPT_TOKENS, 0)

    def remember(self, tokens: NDArray[np.int32]) -> None:
        """Look drafts up in this text, too."""
        if self.past is not None:
            self.past.add(tokens)

    def pause(self) -> None:
        """The reply has ended: remember it."""
        self._remember()

    def close(self) -> None:
        """Remember what was written last, for the next run if there is to be one."""
        self._remember()
        if self.past is not None:
            self.past.save()

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """The text grew by these tokens: O(1) each, amortised."""
        ids = np.array(tokens, np.int32)
        step = max(self._most_tokens // 2, 1)
        for start in range(0, len(ids), step):
            part = ids[start : start + step]
            self._make_room(len(part))
            self._feed(part)

    @property
    def match_length(self) -> int:
        """Length of the text's longest suffix that occurred before."""
        link = int(self._states[self._sizes[LAST], LINK])
        return int(self._states[link, LENGTH]) if link > 0 else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays: exact, and at most `max_bytes`."""
        store = (self._text, self._states, self._edges, self._slots)
        return self._fixed_bytes + sum(buffer.nbytes for buffer in store)
