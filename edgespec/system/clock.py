"""The clock of `time.perf_counter`, for compiled code: the system's function, by its address."""

from __future__ import annotations

import ctypes
import sys
import time

import numpy as np
from numpy.typing import NDArray

from edgespec.system.addresses import call
from edgespec.system.jit import SOURCE, inner_kernel

_FUNCTION, _FIRST, _SECOND, _WHOLE, _PART, _NUM_WORDS = range(6)
"""Words: the function's address, its arguments, and what it writes."""


class Clock:
    """What `now` takes; who holds an address of it must keep it."""

    def __init__(self) -> None:
        self.words: NDArray[np.int64] = np.zeros(_NUM_WORDS, np.int64)
        self.units = np.array([1.0, 1e-9])
        """Seconds that the two words stand for."""
        place = self.words.ctypes.data + 8 * _WHOLE
        if SOURCE == "python":
            return
        if sys.platform == "win32":
            function = ctypes.WinDLL("kernel32").QueryPerformanceCounter
            self.words[_FIRST] = place
            self.units[:] = time.get_clock_info("perf_counter").resolution, 0.0
        else:
            function = ctypes.CDLL(None).clock_gettime
            self.words[_FIRST], self.words[_SECOND] = time.CLOCK_MONOTONIC, place
        self.words[_FUNCTION] = ctypes.cast(function, ctypes.c_void_p).value or 0


@inner_kernel
def now(words: NDArray[np.int64], units: NDArray[np.float64]) -> float:
    """Seconds since some moment."""
    call(words[_FUNCTION], words[_FIRST], words[_SECOND], 0)
    return float(words[_WHOLE] * units[0] + words[_PART] * units[1])
