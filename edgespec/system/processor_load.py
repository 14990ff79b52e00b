"""How much of the processor other programs leave."""

from __future__ import annotations

import os

_MOMENT_S = 0.1
_SHARE = 0.75
"""With less than this part of its threads' processors idle, a measurement is not to be trusted."""


def is_busy(threads: int) -> bool:
    """Whether other programs leave too little for so many threads; sleeps for 0.1 s to see."""
    import psutil

    used: list[float] = psutil.cpu_percent(_MOMENT_S, percpu=True)
    if hasattr(os, "sched_getaffinity"):
        used = [used[one] for one in os.sched_getaffinity(0) if one < len(used)]
    idle = sum(1.0 - each / 100.0 for each in used)
    return idle < _SHARE * min(threads, len(used))
