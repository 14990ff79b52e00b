"""The files of a folder, and how near they are to each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """All plain files below a folder, hidden ones and links left out."""
    folders = [folder]
    while folders:
        with suppress(OSError):
            for path in folders.pop().iterdir():
                if path.name.startswith(".") or path.is_symlink():
                    continue
                if path.is_dir():
                    folders.append(path)
                elif path.is_file():
                    yield path


def nearness(path: Path, other: Path) -> float:
    """How much of the way to two files is the same, from 0 to 1."""
    ours, theirs = path.parts[:-1], other.parts[:-1]
    same = sum(1 for one, another in zip(ours, theirs, strict=False) if one == another)
    return 2 * same / max(len(ours) + len(theirs), 1)
