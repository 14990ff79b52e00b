"""Where the seconds of a step go."""

from __future__ import annotations

from collections.abc import Callable


class StepClock:
    """A stopwatch that is pressed at the end of each phase of a step.

    What drafting did of the pass' work is the pass' price, so `seconds_saved` moves from the one to
    the other.
    """

    __slots__ = ("_begun", "_last", "_now", "draft_s", "study_s", "verify_s")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        """Seconds; in a replay they run on by what passes would have taken."""
        self._begun = self._last = 0.0
        self.draft_s = 0.0
        """Seconds of drafting, and of learning from drafts."""
        self.verify_s = 0.0
        """Of the pass, drawing tokens and committing them."""
        self.study_s = 0.0
        """Of looking at the logits of sequences that nobody drafted for."""

    def start(self) -> None:
        """A step begins."""
        self._begun = self._last = self._now()
        self.draft_s = self.verify_s = self.study_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the step began."""
        return self._now() - self._begun

    def drafted(self) -> None:
        """Drafting has ended."""
        now = self._now()
        self.draft_s, self._last = now - self._last, now

    def verified(self, seconds_saved: float) -> None:
        """The pass has ended, is verified and committed."""
        now = self._now()
        self.verify_s, self._last = now - self._last + seconds_saved, now
        self.draft_s = max(self.draft_s - seconds_saved, 0.0)

    def learnt(self) -> None:
        """One sequence's drafters have learnt what became of their drafts."""
        now = self._now()
        self.draft_s, self._last = self.draft_s + now - self._last, now

    def studied(self) -> None:
        """One sequence's drafters have looked at logits."""
        now = self._now()
        self.study_s, self._last = self.study_s + now - self._last, now
