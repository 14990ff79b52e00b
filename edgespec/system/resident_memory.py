"""What this process really holds: resident memory now and at its peak, and giving some back."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from edgespec.system.shared_pages import SharedPages

_MADV_DONTNEED = 4
_M_MMAP_THRESHOLD = -3
_given_back_bytes = 1 << 62
_shared_pages = SharedPages()
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
    held = int(_process(os.getpid()).memory_info().rss) - _shared_pages.size_bytes
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
        return int(_process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def count_once(path: Path) -> None:
    """Count a file's pages once, however often they are mapped now; to be called again when that
    has changed.
    """
    global _peak_before
    if not _shared_pages.size_bytes:
        _peak_before = _peak_bytes()
    _shared_pages.look(path)


@cache
def _process(pid: int) -> psutil.Process:
    """Made once: looking a process up takes four times as long as asking it."""
    return psutil.Process(pid)


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
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    now = int(_process(os.getpid()).memory_info().rss)
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
    _drop_code_pages()
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


def code_bytes() -> int:
    """Resident bytes that `release_free_memory` can give back as library pages; 0 off Linux."""
    return sum(mapping.resident_bytes for mapping in clean_code_mappings(_smaps()))


def release_pages(files: Iterable[Path]) -> None:
    """Give back pages of these files that a library has mapped and not changed; they return at
    their next touch. Elsewhere than on Linux nothing happens.
    """
    names = {str(file.resolve()) for file in files}
    if names:
        _drop(clean_data_mappings(_smaps(), names))


def _drop_code_pages() -> None:
    """Unmap resident pages of programs and libraries that are still as their files have them."""
    _drop(clean_code_mappings(_smaps()))


def _drop(mappings: Iterable[CodeMapping]) -> None:
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    if madvise is None:
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for mapping in mappings:
        # Refused for locked pages: then nothing is lost.
        madvise(mapping.start, mapping.end - mapping.start, _MADV_DONTNEED)


def _smaps() -> list[str]:
    if sys.maxsize <= 2**32:  # 32-bit libraries may have relocated code
        return []
    try:
        text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()


@dataclass(slots=True)
class CodeMapping:
    """A span of addresses that shows part of a file, most often of a program or library."""

    start: int
    end: int
    path: str
    resident_bytes: int = 0


_TELLING = frozenset("0123456789abcdefRAS")
"""How lines begin that say where a mapping is, or Rss, Anonymous, Swap."""


def clean_code_mappings(smaps: Iterable[str]) -> list[CodeMapping]:
    """The mappings whose pages can be dropped and read again, from the lines of smaps.

    Those are private, read-only mappings of files that also have an executable part. Relocated
    tables are read-only too, but their pages were changed: these are anonymous or swapped by now
    and dropping them would lose the change, so a mapping that holds a single one is left out.
    """
    smaps = list(smaps)
    code = {_header(line)[1] for line in smaps if " r-xp " in line}
    return [each for each in _clean(smaps, ("r-xp", "r--p")) if each.path in code]


def clean_data_mappings(smaps: Iterable[str], names: Container[str]) -> list[CodeMapping]:
    """The private mappings of files by these names whose pages nobody has changed."""
    return [each for each in _clean(smaps, ("r--p", "rw-p")) if each.path in names]


def _clean(smaps: Iterable[str], permissions: tuple[str, ...]) -> list[CodeMapping]:
    """Mappings of files with these permissions and without a changed page."""
    found: dict[int, CodeMapping] = {}
    current: CodeMapping | None = None
    for line in smaps:
        if line[0] not in _TELLING:
            continue
        words, path = _header(line)
        if "-" in words[0]:
            start, end = (int(word, 16) for word in words[0].split("-"))
            current = None
            if path and words[1] in permissions:
                found[start] = current = CodeMapping(start, end, path)
        elif current is not None and words[0] == "Rss:":
            current.resident_bytes = int(words[1]) * 1024
        elif current is not None and words[0] in ("Anonymous:", "Swap:") and words[1] != "0":
            found.pop(current.start, None)
    return list(found.values())


def _header(line: str) -> tuple[list[str], str]:
    """A line's words, and the file that a mapping's first line names."""
    words = line.split(None, 5)
    return words, words[5] if len(words) == 6 and words[5].startswith("/") else ""
