"""What earlier replies said, in a ring of fixed size.

"SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications" keeps a suffix tree of
all outputs beside that of the request; here 12 bytes a token hold hash chains over the outputs
themselves, newest first, and matches are as long as they are (`past_kernels.py`). What is said
again is moved up, so that it is the longest unsaid that is forgotten.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tables.followers import NOBODY
from edgespec.drafting.text.past_kernels import (
    FOUND,
    LONGS,
    MOST_FOUND,
    NUM_PAST_WORDS,
    PREVIOUS,
    RING,
    SHORTS,
    TOTAL,
    is_fresh,
    write_piece,
)
from edgespec.system.addresses import AddressTable

BYTES_PER_TOKEN = 12
PROMPT_TOKENS = 32
"""Of the end of a prompt, kept before each reply: by these its first tokens are found."""
_PART = 4
"""One of so many of a drafter's bytes is its past's."""
_LAST_POSITION = 2**30
_NOTHING = np.zeros(0, np.int32)
_SEPARATOR = np.array([NOBODY], np.int32)


def past_bytes(drafter_bytes: int) -> int:
    """The past's share of a drafter's bytes."""
    return drafter_bytes // _PART


class Past:
    """Earlier replies, for drafters of all sequences; `table` is where kernels find them."""

    def __init__(self, max_bytes: int) -> None:
        self.table = AddressTable(NUM_PAST_WORDS)
        self._found = np.zeros((MOST_FOUND, 4), np.int64)
        self.table.bind(FOUND, self._found)
        fixed = self._found.nbytes + self.table.words.nbytes
        self._allocate(max(max_bytes - fixed, 0) // BYTES_PER_TOKEN)

    def _allocate(self, capacity: int) -> None:
        capacity = max(2 * (capacity // 2), 2)
        self._ring = np.full(capacity, NOBODY, np.int32)
        self._previous = np.full(capacity, -1, np.int32)
        self._shorts = np.zeros(capacity // 2, np.int32)
        self._longs = np.zeros(capacity // 2, np.int32)
        self.table.bind(RING, self._ring)
        self.table.bind(PREVIOUS, self._previous)
        self.table.bind(SHORTS, self._shorts)
        self.table.bind(LONGS, self._longs)
        self.table.words[TOTAL] = 0

    @property
    def num_tokens(self) -> int:
        """Tokens ever written."""
        return int(self.table.words[TOTAL])

    @property
    def capacity(self) -> int:
        """Tokens that it holds at most."""
        return len(self._ring)

    def add(self, tokens: NDArray[np.int32]) -> None:
        """Remember a reply and the end of its prompt; of one too long, the end."""
        piece = np.ascontiguousarray(tokens[-(self.capacity - 1) :], np.int32)
        if not len(piece) or is_fresh(self.table.address, piece, _NOTHING):
            return
        if self.num_tokens > _LAST_POSITION:
            self._start_anew(self.capacity)
        self.write(np.concatenate((_SEPARATOR, piece)))

    def write(self, tokens: NDArray[np.int32]) -> None:
        """Write tokens behind the newest, over the oldest; NOBODY stands before each reply."""
        write_piece(self.table.address, tokens, _NOTHING)

    def save(self) -> None:
        """Keep it for the next run; this one is forgotten."""

    def tokens(self) -> NDArray[np.int32]:
        """All that is held, oldest first; NOBODY stands before each reply."""
        held = min(self.num_tokens, self.capacity)
        return self._ring[np.arange(self.num_tokens - held, self.num_tokens) % self.capacity]

    def shrink(self) -> int:
        """Keep the newest half, for good; returns the bytes given back."""
        before = self.size_bytes
        self._start_anew(self.capacity // 2)
        return before - self.size_bytes

    def _start_anew(self, capacity: int) -> None:
        kept = self.tokens()[-(capacity // 2) :]
        self._allocate(capacity)
        self.write(kept)

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self._ring, self._previous, self._shorts, self._longs, self._found)
        return sum(array.nbytes for array in arrays) + self.table.words.nbytes
