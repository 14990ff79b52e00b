"""Threads that read pieces of matrices from disk and pack them, several at a time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.streaming.direct_file import DirectFile
from edgespec.backends.native.weights import PackedMatrix, tensor_rows
from edgespec.memory.plan.streaming import PAGE
from edgespec.models.file import ModelFile
from edgespec.models.layers import Matrix
from edgespec.system.records import dataclass
from edgespec.system.threads import start_thread


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a matrix that are to be packed: experts' count on, each below the one before."""

    matrix: Matrix
    first: int
    last: int
    tiles: PackedMatrix
    """Where they go."""
    offset: int
    """The row of the matrix that is the first of `tiles`."""
    done: Callable[[], None]


class Pieces(Protocol):
    """What is to be read, in order."""

    def next(self) -> Piece | None:
        """Waits for there to be one; None when all is over. One thread at a time asks."""
        ...

    def stop(self) -> None:
        """Let nobody wait any more, and say that all is over."""
        ...


class DirectRows:
    """Rows of a model's tensors, read past the cache."""

    def __init__(self, file: ModelFile) -> None:
        self._tensors, self._place = file.tensors, file.place
        self._files: dict[Path, DirectFile] = {}
        self._lock = threading.Lock()
        self.bytes_read = 0

    def pack(self, piece: Piece, room: NDArray[np.uint8]) -> None:
        """Read a piece into a room of memory, and pack it from there."""
        info = self._tensors[piece.matrix.tensor]
        ranges = tensor_rows(piece.matrix, info, piece.first, piece.last)
        row_bytes = info.type.row_bytes(info.shape[-1])
        path, begin = self._place(piece.matrix.tensor)
        parts, num_bytes = [], 0
        for start, stop in ranges:
            size = (stop - start) * row_bytes
            raw = self._file(path).read(begin + start * row_bytes, size, room)
            parts.append(raw.reshape(-1, row_bytes) if len(ranges) == 1 else raw.copy())
            num_bytes += size
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts).reshape(-1, row_bytes)
        piece.tiles.pack_rows(piece.first - piece.offset, rows)
        with self._lock:
            self.bytes_read += num_bytes

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _file(self, path: Path) -> DirectFile:
        with self._lock:
            if path not in self._files:
                self._files[path] = DirectFile(path)
            return self._files[path]


class ReadThreads:
    """Threads that take piece after piece; they end with this object at the latest."""

    def __init__(self, pieces: Pieces, rows: DirectRows, rooms: list[NDArray[np.uint8]]) -> None:
        self._errors: list[Exception] = []
        turn = threading.Lock()
        threads = [
            threading.Thread(
                target=_serve,
                args=(pieces, rows, room, turn, self._errors),
                name=f"edgespec-reader-{number}",
                daemon=True,
            )
            for number, room in enumerate(rooms)
        ]
        self.end = weakref.finalize(self, _end, pieces, threads)
        try:
            for thread in threads:
                start_thread(thread)
        except BaseException:
            self.end()
            raise

    def check(self) -> None:
        """Raise what went wrong while something was read."""
        if self._errors:
            raise self._errors[0]


def _serve(
    pieces: Pieces,
    rows: DirectRows,
    room: NDArray[np.uint8],
    turn: threading.Lock,
    errors: list[Exception],
) -> None:
    aligned = room[-room.ctypes.data % PAGE :]
    while True:
        with turn:
            piece = pieces.next()
        if piece is None:
            return
        try:
            if not errors:
                rows.pack(piece, aligned)
        except Exception as error:  # the pass that waits for the piece raises it
            errors.append(error)
        piece.done()


def _end(pieces: Pieces, threads: list[threading.Thread]) -> None:
    pieces.stop()
    for thread in threads:
        if thread.ident is not None:
            thread.join()
