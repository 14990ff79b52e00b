"""Pages of files that this process has mapped more than once, which the system counts each time."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

_MAPS = "/proc/self/smaps"


def counts_once() -> bool:
    """Whether it can be told here which pages are the same (Linux)."""
    return sys.platform == "linux"


class SharedPages:
    """Resident bytes of files that count besides their first map."""

    def __init__(self) -> None:
        self.files: dict[Path, int] = {}
        self.size_bytes = 0
        """To be taken off what the system calls resident."""

    def look(self, path: Path) -> None:
        """Count a file's pages anew; elsewhere than on Linux they are all believed."""
        path = path.resolve()
        found = beyond_the_largest(_lines(), str(path))
        if found:
            self.files[path] = found
        else:
            self.files.pop(path, None)
        self.size_bytes = sum(self.files.values())


def beyond_the_largest(smaps: Iterable[str], name: str) -> int:
    """Resident bytes of a file's maps less those of the largest map, from the lines of smaps.

    A map that was cut in pieces, as a library gives back what it does not need, is one by what it
    would be: pieces lie in order of the file.
    """
    found: list[int] = []
    ours, last = False, -1
    for line in smaps:
        head, *rest = line.split(None, 5)
        if not head.endswith(":"):
            ours = rest[-1:] == [name]
            if ours:
                offset = int(rest[1], 16)
                if offset <= last or not found:
                    found.append(0)
                last = offset
        elif ours and head == "Rss:":
            found[-1] += int(rest[0]) * 1024
    return sum(found) - max(found, default=0)


def _lines() -> list[str]:
    if not counts_once():
        return []
    try:
        return Path(_MAPS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
