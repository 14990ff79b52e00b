"""A market's books: its sources, what they have read, and the table its compiled calls work on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter
from edgespec.drafting.grown import OUTCOME_NEW, GrownDrafter
from edgespec.drafting.market.account import CostlyAccount
from edgespec.drafting.market.merging import LAST, MergedTree
from edgespec.drafting.market.source import Source
from edgespec.drafting.market.step import (
    ASKED,
    CREDIT,
    FREE,
    IDLE,
    LEDGER,
    NUM_COLUMNS,
    NUM_PENDING,
    NUM_WORDS,
    OUTCOME,
    PENDING,
    READ,
    SILENCE,
    SIZE,
    TABLE,
    WAIT,
)
from edgespec.system.addresses import AddressTable

_MOST_PENDING = 256
"""Tokens a store may lag behind: feeding more at once would be felt in one step."""
_FIRST_NODES, _FIRST_NEW = 15, 64
"""Nodes of a proposal, and new tokens of a step, that there is room for at first."""


class Books:
    """Which drafters are asked how, the tokens that they have not read, and the merged tree."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        statistics: NDArray[np.float64],
        clock: Callable[[], float],
        compiled: bool,
        on_trial: Sequence[str] = (),
    ) -> None:
        self.sources = [Source(drafter, number) for number, drafter in enumerate(drafters, 1)]
        self.costly = [source for source in self.sources if source.drafter.costly]
        self.called: list[GrownDrafter] = []
        """Who is asked by compiled calls."""
        self.free: list[Source] = []
        """The other free ones."""
        self.clock = clock
        self.core = AddressTable(NUM_WORDS)
        self.words = self.core.words.data
        self.ledger = np.zeros((len(self.sources), NUM_COLUMNS), np.int64)
        self._credit = np.zeros(len(self.sources) + 1, np.int64)
        self._pending_tokens = np.zeros(_MOST_PENDING, np.int32)
        self._pending = self._pending_tokens.data
        """Tokens that some store may not have been fed."""
        self._room = 0
        """Tokens that may come before a store that kernels write could be full."""
        for source in self.sources:
            self._enter(source, compiled, source.drafter.name in on_trial)
        self.core.bind(LEDGER, self.ledger)
        self.core.bind(CREDIT, self._credit)
        self.core.bind(PENDING, self._pending_tokens)
        self._make_new_tokens(_FIRST_NEW)
        self.merged = MergedTree(self.core, statistics)
        self.reserve(_FIRST_NODES)

    def _enter(self, source: Source, compiled: bool, on_trial: bool) -> None:
        drafter, row = source.drafter, self.ledger[source.number - 1]
        row[FREE] = not drafter.costly
        if drafter.costly:
            source.account = CostlyAccount(on_trial=on_trial)
        elif compiled and isinstance(drafter, GrownDrafter) and drafter.callable_from_kernels:
            self.called.append(drafter)
            row[TABLE] = drafter.table.address
        else:
            self.free.append(source)

    def _make_new_tokens(self, most: int) -> None:
        self._new_tokens = np.zeros(most, np.int32)
        self._new = self._new_tokens.data
        """What came in the step that is observed."""
        self.core.bind(OUTCOME + OUTCOME_NEW, self._new_tokens)

    def write_new(self, tokens: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int32]:
        """Put the tokens that came where kernels find them."""
        self.reserve_new(len(tokens))
        for place, token in enumerate(tokens):
            self._new[place] = token
        return self._new_tokens[: len(tokens)]

    def reserve_new(self, num_tokens: int) -> None:
        """Make room for so many tokens of a step."""
        if num_tokens > len(self._new):
            self._make_new_tokens(2 * num_tokens)

    @property
    def kernel_room(self) -> int:
        """Tokens that may be appended to those that no store has read yet."""
        return min(self._room, _MOST_PENDING - self.words[NUM_PENDING])

    def appended(self, num_tokens: int) -> None:
        """A kernel has appended so many."""
        self._room -= num_tokens

    def reserve(self, max_nodes: int) -> None:
        """Make room for proposals of so many nodes besides the root."""
        self.most_nodes = max_nodes
        others = len(self.sources) - len(self.costly)
        room = 1 + (others + len(self.costly) * len(self.sources)) * (max_nodes + 1)
        self.merged.reserve(room, max_nodes + 1)

    def begin(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """All drafters have read this text, and nobody is silent."""
        self.ledger[:, [ASKED, SIZE, WAIT, SILENCE, IDLE]] = 0
        self.words[LAST] = int(tokens[-1])
        self.look_at_room()

    def append(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """The text grew; who reads that is fed when it is asked, or when it lags far behind."""
        words, pending, at = self.words, self._pending, self.words[NUM_PENDING]
        self._room -= len(tokens)
        if self._room < 0 or at + len(tokens) > _MOST_PENDING:
            self._read(tokens)
        else:
            for token in tokens:
                pending[at] = token
                at += 1
            words[NUM_PENDING] = at
        words[LAST] = tokens[-1]

    def _read(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Let all stores read these, too, now."""
        self.feed_all()
        for source in self.sources:
            start = self.clock()
            source.drafter.extend(tokens)
            source.spent_s += self.clock() - start
        self.look_at_room()

    def look_at_room(self) -> None:
        """All has been read: see how many more tokens may come before somebody has to make room."""
        drafters = (source.drafter for source in self.sources)
        rooms = (drafter.room for drafter in drafters if isinstance(drafter, GrownDrafter))
        self._room = min(rooms, default=sys.maxsize)

    def feed_all(self) -> None:
        """Let all stores read what they have not read."""
        if not self.words[NUM_PENDING]:
            return
        for source in self.sources:
            start = self.clock()
            self.feed(source)
            source.spent_s += self.clock() - start
        self.ledger[:, READ] = 0
        self.words[NUM_PENDING] = 0
        self.look_at_room()

    def feed(self, source: Source) -> None:
        """Let a source read what it has not read."""
        row, count = self.ledger[source.number - 1], self.words[NUM_PENDING]
        if row[READ] < count:
            source.drafter.extend(self._pending_tokens[row[READ] : count].tolist())
            row[READ] = count

    @property
    def size_bytes(self) -> int:
        """Bytes of the books and of the merged tree."""
        books = (self.core.words, self.ledger, self._credit, self._pending_tokens)
        return sum(book.nbytes for book in (*books, self._new_tokens)) + self.merged.size_bytes
