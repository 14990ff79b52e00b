"""The folder that idle texts' keys and values are spilled to, one file each.

Files belong to the process that wrote them, which removes them; what a process left that ended
otherwise is removed by the next. Checksums are keyed with a secret of this process, so nothing that
was written or changed by others is ever read back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import KvFileError
from edgespec.memory.kv.kv_file import KvFile, KvHeader, write_kv
from edgespec.system.disk_cache import SPILL, cache_folder
from edgespec.system.size import MIB, format_size
from edgespec.system.user_data import make_private
from edgespec.system.whole_file import is_running

RESERVE_BYTES = 256 * MIB
"""What a spilled text leaves free of the disk, for everyone else."""


class SpillFolder:
    """Writes blocks to files and reads them back; `remove` ends a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._secret = os.urandom(16)
        for path in _leftovers(folder):
            self.remove(path)

    def write(self, header: KvHeader, blocks: Sequence[NDArray[np.uint8]]) -> Path:
        """A new file with these blocks; raises OSError, also when little of the disk is free."""
        make_private(self._folder)
        import shutil

        free = shutil.disk_usage(self._folder).free
        if free < header.place(len(blocks)) + RESERVE_BYTES:
            raise OSError(f"{self._folder} has {format_size(free)} free")
        path = self._folder / f"{os.getpid()}-{os.urandom(8).hex()}.keys"
        write_kv(path, header, blocks, self._secret, lasting=False)  # it ends with this process
        return path

    def read(
        self, path: Path, header: KvHeader, first: int, blocks: Sequence[NDArray[np.uint8]]
    ) -> None:
        """Fill these blocks with those from `first` on of a file that was written with `header`.

        Raises KvFileError when it is not what was written, OSError when it cannot be read.
        """
        with path.open("rb") as file:
            kept = KvFile.open(path, file, self._secret)
            same = kept.header.kind == header.kind and np.array_equal(kept.header.ids, header.ids)
            form = kept.header.block_bytes, kept.header.sizes
            if not same or form != (header.block_bytes, header.sizes):
                raise KvFileError(f"{path} holds another text")
            for index, content in enumerate(blocks, first):
                kept.read(file, index, content)

    def remove(self, path: Path) -> None:
        """Delete a file; one that is gone, or cannot be deleted, is left to the next process."""
        with suppress(OSError):
            path.unlink()


def spill_folder() -> SpillFolder | None:
    """`spill` in the cache folder, None when `EDGESPEC_SPILL=0` asks that nothing be spilled."""
    if os.environ.get("EDGESPEC_SPILL", "") in ("0", "off", "no"):
        return None
    return SpillFolder(cache_folder() / SPILL)


def _leftovers(folder: Path) -> Iterator[Path]:
    """Files of processes that are no more."""
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            owner = path.name.split("-")[0]
            if owner.isdecimal() and int(owner) != os.getpid() and not is_running(int(owner), path):
                yield path
