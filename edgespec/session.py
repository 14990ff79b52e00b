"""A text that is written on, with what a model and the drafters keep of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgespec.backends.base import Progress
from edgespec.backends.sequence import KvSequence
from edgespec.drafting import DraftTree, Market
from edgespec.reply import FinishReason


@dataclass(slots=True)
class Session:
    """The text so far and everything that works on it.

    Invariant between steps, and after an abandoned or failed one: the sequence has committed all of
    `ids` but the last.
    """

    sequence: KvSequence
    market: Market
    ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "cancelled"
    clock: Callable[[], float] = time.perf_counter
    """Seconds; a target that computes nothing moves it on by what its passes would have taken."""
    shift: int = 0
    """Tokens dropped since the prompt: noise goes on where it was, and never repeats."""
    _root: DraftTree = field(default_factory=lambda: DraftTree.root(0))

    def root(self) -> DraftTree:
        """The text's last token alone: a pass over it is plain decoding. Good until the next."""
        self._root.tokens[0] = self.ids[-1]
        return self._root

    def begin(
        self,
        prompt_ids: Sequence[int],
        others: Sequence[Session] = (),
        progress: Progress | None = None,
    ) -> int:
        """Commit all of a prompt but its last token; returns how many positions were there already,
        in this session or in one of the others, whose memory is then shared.
        """
        sequence = self.sequence
        cached, source = self.common(prompt_ids), self
        for other in others:
            common = other.common(prompt_ids)
            if common > cached:
                cached, source = common, other
        if source is self:
            sequence.truncate(cached)
        else:
            sequence.begin_like(source.sequence, cached)
        self.ids[:] = prompt_ids[: cached + 1]
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

    def common(self, prompt_ids: Sequence[int]) -> int:
        """How many committed positions a prompt, but for its last token, begins with."""
        low, high = 0, min(self.sequence.length, len(prompt_ids) - 1, len(self.ids))
        if self.ids[:high] == list(prompt_ids[:high]):
            return high
        while low < high:  # slices compare faster than a loop
            middle = (low + high + 1) // 2
            if self.ids[low:middle] == list(prompt_ids[low:middle]):
                low = middle
            else:
                high = middle - 1
        return low

    def settle(self) -> None:
        """Drop what an interrupted step committed beyond the text."""
        self.sequence.truncate(min(self.sequence.length, max(len(self.ids) - 1, 0)))
