"""Fewer threads while a machine is too warm for all of them.

A phone that computes for minutes lowers its clock, often to half, and fewer cores would keep more
of it. Whether they do is tried out: fewer threads for a minute, in which the machine cools, and
they stay if passes are then no slower than before. A trial that brought nothing doubles the time
to the next one. Later more threads are tried, for the machine may have cooled.

Slow passes alone are no sign of heat: other programs and long contexts slow them down, too. Where
the system tells its clocks, they must have fallen; where it does not, nothing is done except on
Arm, whose phones hide them.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from edgespec.system.power import number

WINDOW_S = 10.0
"""Passes are judged by so many seconds of them together."""
HOT = 1.3
"""Slower than the machine can by this factor: time to try fewer threads, before it is twice."""
COOLING_S = 60.0
"""How long a trial takes; the last window of it counts."""
FIRST_S = 60.0
"""From a trial that brought nothing to the next; doubled after each ..."""
MOST_S = 1800.0
"""... up to this."""
WARMER_S = 300.0
"""From fewer threads to a trial of more; doubled each time that heat comes back."""
NO_SLOWER = 0.97
IDLE_S = 120.0
"""A pause after which the machine counts as cool."""
_AGEING = 1.0 + 1e-5
"""By how much a pass's best time grows with every pass: the context does, too."""
_LOWER_CLOCK = 0.85


class Heat:
    """How many threads are allowed now; told of every pass.

    `clock_rate` is the processors' mean frequency, None where the system does not tell; `clock` is
    the time in seconds.
    """

    def __init__(
        self,
        most: int,
        clock_rate: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._levels = sorted({most, -(-3 * most // 4), -(-most // 2), -(-most // 4)}, reverse=True)
        self._clock_rate, self._clock = clock_rate, clock
        self._level = self._from = self._depth = 0
        self._best: dict[int, float] = {}
        self._slow = 1.0
        self._begun = self._last = clock()
        self._spent = self._expected = 0.0
        self._rate: float | None = None
        self._top_rate = 0.0
        self._before: float | None = None
        """How slow it was before the trial that is on; None without one."""
        self._until = self._next = 0.0
        self._patience, self._warmer = FIRST_S, WARMER_S

    @property
    def threads(self) -> int:
        """The most to be used in the next pass."""
        return self._levels[self._level]

    def observe(self, num_rows: int, seconds: float) -> None:
        """Take note of what a pass over `num_rows` nodes took."""
        now = self._clock()
        if now - self._last > IDLE_S:
            self._cool(now)
        self._last = now
        best = self._best.get(num_rows, seconds / self._slow)
        self._best[num_rows] = best = min(seconds, best * _AGEING)
        self._spent += seconds
        self._expected += best
        if now - self._begun >= WINDOW_S:
            self._slow = max(self._spent / self._expected, 1.0)
            self._judge(now)
            self._begun, self._spent, self._expected = now, 0.0, 0.0

    def _cool(self, now: float) -> None:
        self._level, self._before, self._begun = 0, None, now
        self._spent = self._expected = 0.0

    def _judge(self, now: float) -> None:
        """Once in a window: end a trial whose time is up, or begin one."""
        self._rate = self._clock_rate()
        self._top_rate = max(self._top_rate, self._rate or 0.0)
        if self._before is not None:
            if now >= self._until:
                self._end_trial(now)
        elif now >= self._next:
            if self._slow >= HOT and self._level + 1 < len(self._levels) and self._is_hot():
                below = len(self._levels) - 1 - self._level
                self._depth = self._depth % below + 1
                self._try(self._level + self._depth, now)
            elif self._level:
                self._try(self._level - 1, now)

    def _try(self, level: int, now: float) -> None:
        self._before, self._from, self._level = self._slow, self._level, level
        self._until = now + COOLING_S

    def _end_trial(self, now: float) -> None:
        """Keep fewer threads where they are no slower, more where they are faster."""
        assert self._before is not None
        fewer = self._level > self._from
        limit = self._before / NO_SLOWER if fewer else self._before * NO_SLOWER
        if self._slow <= limit:
            self._patience = FIRST_S
            self._next = now + (self._warmer if fewer else FIRST_S)
            if fewer:
                self._depth = 0
                self._warmer = min(2 * self._warmer, MOST_S)
        else:
            self._level = self._from
            self._next = now + (self._patience if fewer else self._warmer)
            self._patience = min(2 * self._patience, MOST_S)
        self._before = None

    def _is_hot(self) -> bool:
        """Whether the clock has fallen, as far as can be seen."""
        if self._rate is None:
            return is_arm()
        return self._rate <= _LOWER_CLOCK * self._top_rate


def is_arm() -> bool:
    """Whether this is one of Arm's processors."""
    return platform.machine().lower().startswith(("arm", "aarch64"))


def clock_rate(root: Path = Path("/")) -> float | None:
    """The mean frequency of this process's processors in kHz; None where one does not tell."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    files = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    rates = [number(root / files.format(cpu)) for cpu in allowed]
    told = [rate for rate in rates if rate is not None]
    return sum(told) / len(told) if told and len(told) == len(rates) else None


def heat_of(power: str, threads: int) -> Heat | None:
    """What watches a machine's warmth; None where all threads are wanted, or nothing would show."""
    if power == "full" or threads == 1 or (clock_rate() is None and not is_arm()):
        return None
    return Heat(threads, clock_rate)
