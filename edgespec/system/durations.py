"""What something took, by a clock that may stand still between two looks or be a day ahead."""

from __future__ import annotations

import time

_LEAST_S = 1e-9


def seconds_since(start: float) -> float:
    """Seconds since `time.perf_counter` was looked at; never 0, for they are divided by."""
    return max(time.perf_counter() - start, _LEAST_S)
