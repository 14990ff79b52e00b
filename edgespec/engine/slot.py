"""A place where one sequence is written on, with what a model and the drafters keep of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import field
from typing import Protocol

from edgespec.backends.passes import Progress
from edgespec.backends.sequence import KvSequence
from edgespec.control.prospects import Prospects
from edgespec.drafting.market.market import Market
from edgespec.drafting.tree import DraftTree
from edgespec.system.records import dataclass


class CachedSequence(Protocol):
    """Keys and values in memory that a prompt may begin with."""

    @property
    def sequence(self) -> KvSequence: ...

    def common(self, prompt_ids: Sequence[int]) -> int:
        """How many committed positions a prompt, but for its last token, begins with."""


@dataclass(slots=True)
class Slot:
    """The sequence so far and everything that works on it; one reply after the other uses it.

    Invariant between steps, and after an abandoned or failed one: the KV sequence has committed all
    of `ids` but the last.
    """

    sequence: KvSequence
    market: Market
    ids: list[int] = field(default_factory=list)
    clock: Callable[[], float] = time.perf_counter
    """Seconds; a target that computes nothing moves it on by what its passes would have taken."""
    owner: Hashable = None
    """Whose sequence this is: a conversation's, or nobody's."""
    prospects: Prospects = field(default_factory=Prospects)
    """What drafting here has brought lately."""
    _root: DraftTree = field(default_factory=lambda: DraftTree.root(0))

    def root(self) -> DraftTree:
        """The last token alone: a pass over it is plain decoding. Good until the next."""
        self._root.tokens[0] = self.ids[-1]
        return self._root

    def begin(
        self,
        prompt_ids: Sequence[int],
        others: Iterable[CachedSequence] = (),
        progress: Progress | None = None,
    ) -> int:
        """Commit all of a prompt but its last token; returns how many positions were there already,
        in this slot or in one of the others, whose memory is then shared.
        """
        sequence = self.sequence
        cached, source = self.nearest(prompt_ids, others)
        self.start(prompt_ids, cached, source)
        rest = prompt_ids[cached:-1]
        if rest:
            done = cached
            try:
                sequence.prefill(rest, progress=progress)
                done = len(prompt_ids) - 1
            finally:
                done = max(done, sequence.length)
                self.ids[:] = prompt_ids[: done + 1]
        return cached

    def nearest(
        self, prompt_ids: Sequence[int], others: Iterable[CachedSequence]
    ) -> tuple[int, KvSequence]:
        """The most positions that a prompt can begin with, of this slot or of one of the others,
        and whose they are.
        """
        cached, source = self.sequence.rewindable(self.common(prompt_ids)), self.sequence
        for other in others:
            common = other.sequence.rewindable(other.common(prompt_ids))
            if common > cached:
                cached, source = common, other.sequence
        return cached, source

    def start(self, prompt_ids: Sequence[int], length: int, source: KvSequence) -> None:
        """Hold the first positions of a prompt, which a sequence has, and nothing else."""
        if source is self.sequence:
            source.truncate(length)
        else:
            self.sequence.begin_like(source, length)
        self.ids[:] = prompt_ids[: length + 1]

    def common(self, prompt_ids: Sequence[int]) -> int:
        """How many committed positions a prompt, but for its last token, begins with."""
        return num_common(self.ids, prompt_ids, self.sequence.length)

    def settle(self) -> None:
        """Drop what an interrupted step committed beyond the ids; nobody drafts any more."""
        try:
            self.market.pause()
        finally:  # what drafters fail at is no reason to leave the sequence as it is
            wanted = min(self.sequence.length, max(len(self.ids) - 1, 0))
            kept = self.sequence.truncate(wanted)
            if kept < wanted:
                del self.ids[kept + 1 :]


def num_common(ids: Sequence[int], prompt_ids: Sequence[int], length: int) -> int:
    """How many tokens a prompt, but for its last, begins with of the first `length` ids."""
    low, high = 0, min(length, len(prompt_ids) - 1, len(ids))
    if ids[:high] == list(prompt_ids[:high]):
        return high
    while low < high:  # slices compare faster than a loop
        middle = (low + high + 1) // 2
        if ids[low:middle] == list(prompt_ids[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
