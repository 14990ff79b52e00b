"""Files that appear whole or not at all, wherever the process that writes them is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

SUFFIX = ".part"
"""Of what is being written: NAME.PROCESS-CHANCE.part, beside what it is to replace."""


@contextmanager
def whole_file(
    path: Path, *, private: bool = True, lasting: bool = True
) -> Iterator[BufferedWriter]:
    """A file to write, which takes the place of `path` when all went well; raises OSError.

    It is on the disk before that, unless it need not be `lasting`, and only its owner reads it
    where it is `private`. What a process that was killed left of such a file goes first.
    """
    if lasting:
        _remove_leftovers(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}{SUFFIX}")
    try:
        mode = 0o600 if private else 0o666
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def is_running(process: int, path: Path) -> bool:
    """Whether the process that wrote a file runs still; its number may be another's by now."""
    import psutil

    try:
        return bool(psutil.Process(process).create_time() <= path.stat().st_mtime)
    except (psutil.NoSuchProcess, OSError):
        return False
    except psutil.Error:  # someone else's: leave it
        return True


def _remove_leftovers(path: Path) -> None:
    with suppress(OSError):
        for one in sorted(path.parent.iterdir()):
            writer, _, _ = one.name.removeprefix(f"{path.name}.").partition("-")
            is_part = one.name.startswith(f"{path.name}.") and one.name.endswith(SUFFIX)
            if is_part and writer.isdecimal() and not is_running(int(writer), one):
                one.unlink(missing_ok=True)
