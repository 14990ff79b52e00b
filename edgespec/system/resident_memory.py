"""What this process really holds: resident memory now and at its peak, and giving some back."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from edgespec.system import proc
from edgespec.system.records import dataclass
from edgespec.system.shared_pages import SharedPages

_MADV_DONTNEED = 4
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
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


def keep_one_heap() -> None:
    """Have all threads that begin from now on take memory from one heap (glibc).

    Left alone, it makes one for each of the first eight times as many threads as there are cores,
    and what is free in one is none of the others'; Python lets one thread ask at a time anyway.
    """
    if platform.libc_ver()[0] == "glibc":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


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


def _smaps() -> str:
    if sys.maxsize <= 2**32:  # 32-bit libraries may have relocated code
        return ""
    try:
        return Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass(slots=True)
class CodeMapping:
    """A span of addresses that shows part of a file, most often of a program or library."""

    start: int
    end: int
    path: str
    resident_bytes: int = 0


_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ +(/.*)$", re.MULTILINE)
"""The first line of a mapping of a file."""


def clean_code_mappings(smaps: str) -> list[CodeMapping]:
    """The mappings whose pages can be dropped and read again, from the text of smaps.

    Those are private, read-only mappings of files that also have an executable part. Relocated
    tables are read-only too, but their pages were changed: these are anonymous or swapped by now
    and dropping them would lose the change, so a mapping that holds a single one is left out.
    """
    code = {found[4] for found in _MAPPING.finditer(smaps) if found[3] == "r-xp"}
    return [each for each in _clean(smaps, ("r-xp", "r--p")) if each.path in code]


def clean_data_mappings(smaps: str, names: Container[str]) -> list[CodeMapping]:
    """The private mappings of files by these names whose pages nobody has changed."""
    return [each for each in _clean(smaps, ("r--p", "rw-p")) if each.path in names]


def _clean(smaps: str, permissions: tuple[str, ...]) -> Iterator[CodeMapping]:
    """Mappings of files with these permissions and without a changed page."""
    for found in _MAPPING.finditer(smaps):
        place = found.end()
        if found[3] in permissions and not (
            _bytes(smaps, "Anonymous:", place) or _bytes(smaps, "Swap:", place)
        ):
            resident = _bytes(smaps, "Rss:", place)
            yield CodeMapping(int(found[1], 16), int(found[2], 16), found[4], resident)


def _bytes(smaps: str, name: str, start: int) -> int:
    """The first number of this name from a place on, 0 where a system has none."""
    found = smaps.find(f"\n{name}", start)
    return 0 if found < 0 else int(smaps[found + 1 + len(name) : smaps.find("kB", found)]) * 1024
