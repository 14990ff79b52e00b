"""Pages of programs and libraries that are as their files have them: which they are, dropping them.

Only `smaps` tells changed pages, and it takes the kernel a walk over everything that is resident,
tens of milliseconds where gigabytes are. `maps` takes a fraction of one. So what a mapping holds is
looked up once for each: code and what lies beside it read-only is changed by the loader alone,
before anybody else can see it, or never.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from edgespec.system.records import dataclass

_MADV_DONTNEED = 4
_MAPS, _SMAPS = "/proc/self/maps", "/proc/self/smaps"
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ +(/.*)$", re.MULTILINE)
"""The line of a mapping of a file."""
_CODE = ("r-xp", "r--p")


@dataclass(slots=True)
class Mapping:
    """A span of addresses that shows part of a file, most often of a program or library."""

    start: int
    end: int
    path: str
    resident_bytes: int = 0


class LibraryPages:
    """The mappings of code whose pages can be dropped, each looked up once."""

    def __init__(self) -> None:
        self._can_drop: dict[str, bool] = {}
        """By the mapping's line."""

    def drop(self) -> None:
        """Unmap resident pages of programs and libraries that are still as their files have them;
        those still in use return at their next touch.
        """
        found = {one[0]: one for one in _code_lines(_text(_MAPS))}
        if not found.keys() <= self._can_drop.keys():
            smaps = _text(_SMAPS)
            clean = {one[0] for one in _clean(smaps, _code_lines(smaps))}
            self._can_drop = {line: line in clean for line in found}
        _drop(_span(one) for line, one in found.items() if self._can_drop[line])


def clean_code_mappings(smaps: str) -> list[Mapping]:
    """The mappings whose pages can be dropped and read again, from the text of smaps.

    Those are private, read-only mappings of files that also have an executable part. Relocated
    tables are read-only too, but their pages were changed: these are anonymous or swapped by now
    and dropping them would lose the change, so a mapping that holds a single one is left out.
    """
    return [_with_bytes(smaps, one) for one in _clean(smaps, _code_lines(smaps))]


def clean_data_mappings(smaps: str, names: Container[str]) -> list[Mapping]:
    """The private mappings of files by these names whose pages nobody has changed."""
    lines = (one for one in _MAPPING.finditer(smaps) if one[3] in ("r--p", "rw-p"))
    return [_with_bytes(smaps, one) for one in _clean(smaps, lines) if one[4] in names]


def code_bytes() -> int:
    """Resident bytes that dropping library pages gives back; 0 off Linux."""
    return sum(mapping.resident_bytes for mapping in clean_code_mappings(_text(_SMAPS)))


def release_pages(files: Iterable[Path]) -> None:
    """Give back pages of these files that a library has mapped and not changed; they return at
    their next touch. Elsewhere than on Linux nothing happens.
    """
    names = {str(file.resolve()) for file in files}
    if names:
        _drop(clean_data_mappings(_text(_SMAPS), names))


def _text(path: str) -> str:
    if sys.maxsize <= 2**32:  # 32-bit libraries may have relocated code
        return ""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _code_lines(maps: str) -> list[re.Match[str]]:
    """Private, read-only mappings of files that also have an executable part."""
    lines = [one for one in _MAPPING.finditer(maps) if one[3] in _CODE]
    code = {one[4] for one in lines if one[3] == "r-xp"}
    return [one for one in lines if one[4] in code]


def _clean(smaps: str, lines: Iterable[re.Match[str]]) -> Iterator[re.Match[str]]:
    """Those of smaps' mappings without a changed page."""
    for one in lines:
        place = one.end()
        if not (_bytes(smaps, "Anonymous:", place) or _bytes(smaps, "Swap:", place)):
            yield one


def _span(line: re.Match[str]) -> Mapping:
    return Mapping(int(line[1], 16), int(line[2], 16), line[4])


def _with_bytes(smaps: str, line: re.Match[str]) -> Mapping:
    span = _span(line)
    return Mapping(span.start, span.end, span.path, _bytes(smaps, "Rss:", line.end()))


def _bytes(smaps: str, name: str, start: int) -> int:
    """The first number of this name from a place on, 0 where a system has none."""
    found = smaps.find(f"\n{name}", start)
    return 0 if found < 0 else int(smaps[found + 1 + len(name) : smaps.find("kB", found)]) * 1024


def _drop(mappings: Iterable[Mapping]) -> None:
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    if madvise is None:
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for mapping in mappings:
        # Refused for locked pages: then nothing is lost.
        madvise(mapping.start, mapping.end - mapping.start, _MADV_DONTNEED)
