"""The weights of an open model that are on disk: their memory, and the threads that read them."""

from __future__ import annotations

import os
from typing import Self

import numpy as np

from edgespec.backends.native.stage_maker import StageMaker, Stages
from edgespec.backends.native.streaming.expert_store import ExpertStore
from edgespec.backends.native.streaming.matrix_ring import MatrixRing
from edgespec.backends.native.streaming.read_threads import DirectRows, ReadThreads
from edgespec.backends.native.weights import Weights
from edgespec.memory.plan.streaming import LINE, READ_THREADS, Streaming
from edgespec.models.file import ModelFile


class StreamedWeights:
    """What a pass finds in a ring of matrices, or in slots for experts."""

    def __init__(self, file: ModelFile, weights: Weights, streaming: Streaming) -> None:
        buffer = np.zeros(streaming.buffer_bytes, np.uint8)
        self._rooms = [np.zeros(streaming.room_bytes, np.uint8) for _ in range(READ_THREADS)]
        memory = buffer[-buffer.ctypes.data % LINE :]
        self.size_bytes = buffer.nbytes + sum(room.nbytes for room in self._rooms)
        self.ring = self.experts = None
        self._pieces: MatrixRing | ExpertStore
        if streaming.matrices:
            self._pieces = self.ring = MatrixRing(weights, streaming.matrices, memory)
        else:
            slots = streaming.expert_slots
            self._pieces = self.experts = ExpertStore(file.spec, weights, slots, memory)
        self._rows = DirectRows(file)
        self._threads: ReadThreads | None = None
        self._process = os.getpid()

    @classmethod
    def of(cls, file: ModelFile, weights: Weights, streaming: Streaming | None) -> Self | None:
        """Those of a plan, None where all stays in memory."""
        return None if streaming is None else cls(file, weights, streaming)

    @property
    def bytes_read(self) -> int:
        """Of the file, so far."""
        return self._rows.bytes_read

    def around(self, stages: Stages, maker: StageMaker) -> Stages:
        """A layer's stages, which wait for what they read."""
        return stages if self.ring is None else self.ring.around(stages, maker)

    def __enter__(self) -> None:
        """Around a pass: starts the threads, anew in a process that was forked; raises
        ModelFileError where they could not read.
        """
        if self._process != os.getpid() and self._threads is not None:
            self._threads.end.detach()
            self._threads = None
            self._pieces.reset()
        if self._threads is None:
            self._process = os.getpid()
            self._threads = ReadThreads(self._pieces, self._rows, self._rooms)
        self._threads.check()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._threads is not None:
            self._threads.check()

    def close(self) -> None:
        """End the threads, and close their files."""
        if self._threads is not None:
            self._threads.end()
        self._rows.close()
