"""How fast a disk gives what is read from it as passes read their weights."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.streaming.direct_file import DirectFile
from edgespec.memory.plan.streaming import PAGE, READ_BYTES, READ_THREADS
from edgespec.system.durations import seconds_since

_ROUNDS, _BLOCKS = 3, 16
"""A round is so many blocks in a row, somewhere in the file."""


@cache
def disk_bytes_per_s(path: Path) -> float:
    """Measured once in a process, with the reads of passes: 96 MiB, or as much as there is."""
    blocks = max(1, path.stat().st_size // READ_BYTES)
    count = min(_BLOCKS, blocks)
    rooms = [_room() for _ in range(READ_THREADS)]
    with closing(DirectFile(path)) as file, ThreadPoolExecutor(READ_THREADS) as pool:

        def read(job: tuple[int, NDArray[np.uint8], int]) -> int:
            first, room, number = job
            end, done = min(path.stat().st_size, (first + count) * READ_BYTES), 0
            for block in range(first + number, first + count, READ_THREADS):
                size = min(READ_BYTES, end - block * READ_BYTES)
                done += len(file.read(block * READ_BYTES, size, room))
            return done

        speeds = []
        for _ in range(_ROUNDS):
            first = random.randint(0, blocks - count)
            start = time.perf_counter()
            done = sum(pool.map(read, [(first, room, i) for i, room in enumerate(rooms)]))
            speeds.append(done / seconds_since(start))
    return median(speeds)


def _room() -> NDArray[np.uint8]:
    room = np.zeros(READ_BYTES + 3 * PAGE, np.uint8)
    return room[-room.ctypes.data % PAGE :]
