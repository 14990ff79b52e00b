"""Reads that leave nothing in the system's cache: what is read in every pass would fill it, and
count as this process's memory in a control group.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError
from edgespec.memory.plan.state_layout import round_up
from edgespec.memory.plan.streaming import PAGE


class DirectFile:
    """A file read past the cache: with O_DIRECT, else dropped from it after each read; on macOS
    with F_NOCACHE, on Windows as any file. Safe to share by threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._is_direct = hasattr(os, "O_DIRECT")
        try:
            self._file = self._open(getattr(os, "O_DIRECT", 0))
        except OSError:  # file systems that know no such reads
            self._is_direct = False
            self._file = self._open(0)
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(self._file, fcntl.F_NOCACHE, 1)

    def read(self, offset: int, num_bytes: int, room: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """These bytes, somewhere in `room`, which starts on a page and has two pages more.

        Raises ModelFileError where the disk does not give them.
        """
        first = offset - offset % PAGE
        wanted = offset + num_bytes - first
        part = room[: round_up(wanted, PAGE)]
        try:
            count = self._fill(first, part)
        except OSError as error:
            raise ModelFileError(
                f"cannot read {self._path}: {error.strerror or error}; check the disk"
            ) from None
        if count < wanted:
            raise ModelFileError(
                f"cannot read {self._path}: it ended at byte {first + count}, and weights go on to "
                f"{offset + num_bytes}; was it changed? download it again"
            )
        return room[offset - first : wanted]

    def close(self) -> None:
        """No thread may be reading."""
        os.close(self._file)

    def _open(self, flags: int) -> int:
        return os.open(self._path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | flags)

    def _fill(self, offset: int, part: NDArray[np.uint8]) -> int:
        done = 0
        while done < len(part):
            try:
                count = self._read_once(offset + done, part[done:])
            except OSError:
                if not self._is_direct:
                    raise
                self._give_up_direct()
                continue
            if count == 0:
                break
            done += count
            if done % PAGE:  # the end of the file
                break
        if not self._is_direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file, offset, len(part), os.POSIX_FADV_DONTNEED)
        return done

    def _give_up_direct(self) -> None:
        """Some systems open files for direct reads that they then refuse."""
        with self._lock:
            if self._is_direct:
                plain = self._open(0)
                os.dup2(plain, self._file)
                os.close(plain)
                self._is_direct = False

    def _read_once(self, offset: int, part: NDArray[np.uint8]) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file, [part.data], offset)
        with self._lock:
            os.lseek(self._file, offset, os.SEEK_SET)
            found = os.read(self._file, len(part))
        part[: len(found)] = np.frombuffer(found, np.uint8)
        return len(found)
