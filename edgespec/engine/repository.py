"""The text files of a folder, in the order in which drafts are to be looked up in them.

"CodeSwift: Accelerating LLM Inference for Efficient Code Generation" drafts from the repository
that is worked on. What is near the file that is edited is quoted most, and what was changed last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgespec.errors import OptionError
from edgespec.system.folder_files import files_below, nearness

MOST_BYTES = 2**20
"""Of text read at once; more would push itself out of the drafters' memory."""


class Repository:
    """A folder of text; remembers which of its files were read as they are."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises OptionError where there is none."""
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise OptionError(f"cannot read {folder}: there is no such folder; check the path")
        self._read: dict[Path, tuple[int, int]] = {}
        """What was read, by its time of change and its size."""

    def news(self, near: str | os.PathLike[str] | None = None) -> Iterator[str]:
        """The files that are new or changed since they were last read, those in folders near a file
        of it last, and that file not at all.

        Of a large folder the nearest MOST_BYTES. Links, hidden files and what is no UTF-8 text are
        left out.
        """
        edited = self.folder / near if near is not None else self.folder / "any"
        found = []
        for path in files_below(self.folder):
            with suppress(OSError):
                stat = path.stat()
                if path != edited:
                    found.append((nearness(path, edited), stat.st_mtime_ns, path, stat.st_size))
        chosen, num_bytes = [], 0
        for _, changed, path, size in sorted(found, reverse=True):
            if num_bytes + size > MOST_BYTES:
                continue
            num_bytes += size
            if self._read.get(path) != (changed, size):
                self._read[path] = (changed, size)
                chosen.append(path)
        for path in reversed(chosen):
            with suppress(OSError, UnicodeDecodeError):
                text = path.read_text(encoding="utf-8")
                if "\0" not in text:
                    yield text
