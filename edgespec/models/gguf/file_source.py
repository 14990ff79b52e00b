"""Positioned reads from one file, so that loading never maps the file into memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError

# One system call moves at most this much: Linux stops at 2 GiB, and a bad disk is noticed sooner.
_MAX_READ_BYTES = 1 << 28


class FileSource:
    """An open file that is read by offset into memory of the caller's; safe to share by threads."""

    def __init__(self, path: Path) -> None:
        """Open `path` for reading; raises ModelFileError when that cannot be done."""
        self.path = path
        self._lock = threading.Lock()
        if path.is_dir():
            raise ModelFileError(
                f"cannot open {path}: it is a directory; give the path of a .gguf file in it"
            )
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - close() is ours
            status = os.fstat(self._file.fileno())
            self.size_bytes, self.changed_ns = status.st_size, (status.st_mtime_ns,)
        except FileNotFoundError:
            raise ModelFileError(
                f"cannot open {path}: there is no such file; check the path, or leave the model "
                "out to use the bundled one"
            ) from None
        except OSError as error:
            raise ModelFileError(
                f"cannot open {path}: {error.strerror or error}; check the file's permissions"
            ) from None

    @property
    def fileno(self) -> int:
        return self._file.fileno()

    def place(self, offset: int) -> tuple[Path, int]:
        """The file that holds a byte, and which of its bytes that is."""
        return self.path, offset

    def read(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return `num_bytes` from `offset` as fresh memory, `[num_bytes]` u8."""
        data = np.empty(num_bytes, np.uint8)
        self.read_into(offset, data)
        return data

    def read_into(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Fill contiguous `data` from `offset`; raises ModelFileError when the file ends early."""
        if self._file.closed:
            raise ModelFileError(f"cannot read {self.path}: it was closed; open the model again")
        if data.size == 0:
            return
        view = data.data.cast("B")
        done = 0
        while done < len(view):
            part = view[done : done + _MAX_READ_BYTES]
            try:
                count = self._read_once(offset + done, part)
            except OSError as error:
                raise ModelFileError(
                    f"cannot read {self.path}: {error.strerror or error}; check the disk"
                ) from None
            if count == 0:
                raise ModelFileError(
                    f"cannot read {self.path}: it ended at byte {offset + done} where "
                    f"{offset + len(view)} were promised; was it changed? download it again"
                )
            done += count

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> FileSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read_once(self, offset: int, part: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [part], offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(part) or 0
