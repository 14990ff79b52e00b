"""Logits in memory that two processes share."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from edgespec.backends.passes import Logits

_MEMORY = Path("/dev/shm")
"""Linux's files in memory; elsewhere the system's folder for temporary files."""


class SharedRows:
    """Rows [count, vocab] f32; made by one process, opened by another by its path."""

    def __init__(self, count: int, vocab: int, path: Path | None = None) -> None:
        self._is_own = path is None
        size = 4 * count * vocab
        if path is None:
            folder = _MEMORY if os.access(_MEMORY, os.W_OK) else None
            descriptor, name = tempfile.mkstemp(prefix="edgespec-", suffix=".rows", dir=folder)
            os.truncate(descriptor, size)
            path = Path(name)
        else:
            descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        self.path = path
        try:
            pages = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.values: Logits = np.frombuffer(pages, np.float32).reshape(count, vocab)

    def unlink(self) -> None:
        """Take the name away, once the other process has opened it; pages stay while they are
        mapped. Where open files cannot lose their names (Windows), at the end.
        """
        with suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        if self._is_own:
            self.values = np.zeros((0, 0), np.float32)
            self.unlink()
