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

_ROUNDS, _ROUND_S, _MOST_BYTES = 3, 0.15, 512 << 20
"""A round reads block after block, for so long or so much. Only the first reads blocks that were
not read before, which passes do once: what lies below a virtual disk may give them faster later.
"""


@cache
def disk_bytes_per_s(path: Path) -> float:
    """Of blocks that are read again and again, with the reads of passes; measured once in half a
    second.
    """
    size = path.stat().st_size
    blocks = -(-size // READ_BYTES)
    first = random.randrange(blocks)
    count = min(blocks, _MOST_BYTES // READ_BYTES)
    places = [(first + each) % blocks * READ_BYTES for each in range(count)]
    rooms = [_room() for _ in range(READ_THREADS)]
    with closing(DirectFile(path)) as file, ThreadPoolExecutor(READ_THREADS) as pool:
        fresh = _round(file, size, places, pool, rooms)
        del places[max(1, round(fresh * _ROUND_S / READ_BYTES)) :]
        return median(_round(file, size, places, pool, rooms) for _ in range(_ROUNDS))


def _round(
    file: DirectFile,
    size: int,
    blocks: list[int],
    pool: ThreadPoolExecutor,
    rooms: list[NDArray[np.uint8]],
) -> float:
    """Bytes a second of one round; each thread reads into a room of its own."""
    places = iter(blocks)
    start = time.perf_counter()

    def read(room: NDArray[np.uint8]) -> int:
        done = 0
        for place in places:
            done += len(file.read(place, min(READ_BYTES, size - place), room))
            if seconds_since(start) > _ROUND_S:
                break
        return done

    return sum(pool.map(read, rooms)) / seconds_since(start)


def _room() -> NDArray[np.uint8]:
    room = np.zeros(READ_BYTES + 3 * PAGE, np.uint8)
    return room[-room.ctypes.data % PAGE :]
