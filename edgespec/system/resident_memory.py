"""What this process really holds: resident memory now and at its peak, and giving some back."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edgespec.system import proc
from edgespec.system.library_pages import LibraryPages
from edgespec.system.shared_pages import SharedPages

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_given_back_bytes = 1 << 62
_shared_pages = SharedPages()
_library_pages = LibraryPages()
_peak_before = 0
"""The peak when pages began to be seen twice."""
_peak_alone = 0
"""The peak when another process was counted last."""
_others: set[int] = set()
"""Processes that work for this one alone."""


def resident_bytes() -> int:
    """Resident memory of this process now, in bytes; shared library pages count, pages that
    `count_once` was told of count once.
    """
    held = process_bytes() - _shared_pages.size_bytes
    return held + sum(map(_other_bytes, _others)) if _others else held


def count_process(pid: int) -> Callable[[], None]:
    """Count what another process holds as this one's, until what this returns is called."""
    global _peak_alone
    alone = peak_resident_bytes()
    reset_peak()
    _peak_alone = alone
    _others.add(pid)
    return lambda: _others.discard(pid)


def _other_bytes(pid: int) -> int:
    try:
        return process_bytes(pid)
    except OSError:
        return 0


def count_once(path: Path) -> None:
    """Count a file's pages once, however often they are mapped now; to be called again when that
    has changed.
    """
    global _peak_before
    if not _shared_pages.size_bytes:
        _peak_before = _peak_bytes()
    _shared_pages.look(path)


def process_bytes(pid: int | None = None) -> int:
    """What a process is resident in, this one by default; raises OSError for one that is gone."""
    found = proc.resident_bytes("self" if pid is None else pid)
    if found is None:
        import psutil

        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error as error:
            raise OSError(str(error)) from None
    return found


def peak_resident_bytes() -> int:
    """The most this process has been resident in since it began or `reset_peak`, in bytes, as
    `resident_bytes` counts.
    """
    twice = _shared_pages.size_bytes
    peak = max(_peak_bytes() - twice, min(_peak_before, _peak_bytes())) if twice else _peak_bytes()
    return max(_peak_alone, peak + sum(map(_other_peak_bytes, _others)))


def _other_peak_bytes(pid: int) -> int:
    return max(_status_bytes("VmHWM", pid) or 0, _other_bytes(pid))


def _peak_bytes() -> int:
    """What the system says.

    Linux: VmHWM, which recent kernels round by some pages per processor. Windows: the peak working
    set. Elsewhere: `ru_maxrss` (bytes on macOS, KiB on the BSDs).
    """
    if sys.platform == "linux":
        peak = _status_bytes("VmHWM")
        if peak is not None:
            return peak
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    now = process_bytes()
    return max(peak if sys.platform == "darwin" else peak * 1024, now)


def reset_peak() -> bool:
    """Let the peak begin anew from what is resident now; False where the system cannot."""
    global _peak_before, _peak_alone
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    _peak_before = _peak_alone = 0
    return True


def release_free_memory() -> int:
    """Give the system back what this process holds and does not need; returns bytes, at least 0.

    Freed heap (glibc's `malloc_trim`) and, on Linux, the file pages of programs and libraries: they
    are clean copies of their files, so those still in use return at their next touch for a
    microsecond each. A compiler leaves about 60 MiB of them behind. Elsewhere nothing happens.
    """
    before = resident_bytes()
    _trim_heap()
    _library_pages.drop()
    return max(0, before - resident_bytes())


def _status_bytes(key: str, pid: int | str = "self") -> int | None:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return None


def _trim_heap() -> None:
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # musl has none
        trim(ctypes.c_size_t(0))


def give_back_blocks(least_bytes: int) -> None:
    """Have blocks of this size and more go back to the system when they are freed (glibc).

    Left alone, it keeps blocks as large as the largest freed so far, up to 32 MiB each: of a buffer
    that grows with the context, what it was before stays resident between others. The smallest size
    that was ever asked for holds.
    """
    global _given_back_bytes
    if least_bytes < _given_back_bytes and platform.libc_ver()[0] == "glibc":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, least_bytes)
            _given_back_bytes = least_bytes


def keep_one_heap() -> None:
    """Have all threads that begin from now on take memory from one heap (glibc).

    Left alone, it makes one for each of the first eight times as many threads as there are cores,
    and what is free in one is none of the others'; Python lets one thread ask at a time anyway.
    """
    if platform.libc_ver()[0] == "glibc":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
