"""How much of the processor other programs leave."""

from __future__ import annotations

import os
import time

from edgespec.system import proc

_MOMENT_S = 0.1
_SHARE = 0.75
"""With less than this part of its threads' processors idle, a measurement is not to be trusted."""


def is_busy(threads: int) -> bool:
    """Whether other programs leave too little for so many threads; sleeps for 0.1 s to see."""
    idle = _idle_shares()
    if hasattr(os, "sched_getaffinity"):
        idle = {one: idle[one] for one in os.sched_getaffinity(0) if one in idle}
    return sum(idle.values()) < _SHARE * min(threads, len(idle))


def _idle_shares() -> dict[int, float]:
    """The part of this moment that each logical processor is idle, by its number."""
    before = proc.idle_ticks()
    if before is None:
        import psutil

        used: list[float] = psutil.cpu_percent(_MOMENT_S, percpu=True)
        return {one: 1.0 - each / 100.0 for one, each in enumerate(used)}
    time.sleep(_MOMENT_S)
    after = proc.idle_ticks() or before
    return {
        one: (after[one][0] - idle) / max(after[one][1] - all_, 1)
        for one, (idle, all_) in before.items()
        if one in after
    }
