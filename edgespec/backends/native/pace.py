"""How many of its threads a team uses: all, or fewer while other programs use the cores."""

from __future__ import annotations

from edgespec.system.heat import Heat

BUSY = 1.5
"""Passes this many times slower than their best make it worth trying fewer threads."""
BETTER = 0.9
"""Another number of threads is kept when it takes at most this share of the time."""
TRIAL = 5
"""Passes of a trial, of which the median counts: one that was interrupted decides nothing."""
PATIENCE = 16
"""Passes before the first trial and the next; doubled after each that brought nothing ..."""
MOST_PATIENCE = 512
"""... up to this."""
AGEING = 1.0005
"""By how much a pass's best time grows with every pass: the context does, too."""


class Pace:
    """Chooses threads for each pass by what passes took, relative to the best for their size.

    A thread that has to wait for its core makes all others wait for it at the next barrier, so one
    busy core can slow a pass down many times. With nothing slow, nothing is tried; but where cores
    are unequal, every number once. `heat` may allow fewer.
    """

    def __init__(self, most: int, heat: Heat | None = None, *, unequal: bool = False) -> None:
        self._heat = heat
        self._levels = sorted({most, max(1, most - 1), max(1, most // 2), 1}, reverse=True)
        self._level = 0
        self._trial: int | None = None
        self._best: dict[int, float] = {}
        self._recent: list[tuple[int, float]] = []
        self._before: list[tuple[int, float]] = []
        self._passes, self._patience = 0, PATIENCE
        self._turn = -1
        self._untried = list(range(1, len(self._levels))) if unequal else []

    @property
    def threads(self) -> int:
        """Threads for the next pass."""
        wanted = self._levels[self._level if self._trial is None else self._trial]
        return wanted if self._heat is None else min(wanted, self._heat.threads)

    def observe(self, num_rows: int, seconds: float) -> None:
        """Take note of what a pass over `num_rows` nodes took."""
        if self._heat is not None:
            self._heat.observe(num_rows, seconds)
        self._best[num_rows] = min(seconds, self._best.get(num_rows, seconds) * AGEING)
        self._passes += 1
        recent = self._recent
        recent.append((num_rows, seconds))
        if len(recent) < TRIAL:
            return
        del recent[:-TRIAL]
        if self._trial is not None:
            self._judge()
        elif self._passes >= self._patience:
            self._start_trial(self._slowness(self._recent))

    def _slowness(self, passes: list[tuple[int, float]]) -> float:
        """The median of how many times their best they took."""
        ratios = sorted(seconds / self._best[rows] for rows, seconds in passes)
        middle = len(ratios) // 2
        return (ratios[middle] + ratios[~middle]) / 2

    def _start_trial(self, rated: float) -> None:
        """Fewer threads while passes are slow, more while some are left out; all in turn."""
        levels = range(len(self._levels) if rated >= BUSY else self._level)
        others = [level for level in levels if level != self._level]
        if self._untried:
            others = [self._untried.pop(0)]
        if not others:
            self._passes, self._patience = 0, PATIENCE
            return
        self._turn += 1
        self._trial = others[self._turn % len(others)]
        self._before, self._recent = self._recent, []

    def _judge(self) -> None:
        """Keep what was tried if it is clearly faster."""
        if self._trial is not None and (
            self._slowness(self._recent) < self._slowness(self._before) * BETTER
        ):
            self._level, self._patience = self._trial, PATIENCE
        else:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._trial, self._passes, self._recent = None, 0, []
