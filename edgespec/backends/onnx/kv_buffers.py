"""Keys and values of the text so far, in memory that ONNX Runtime reads and writes in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.models.spec import ModelSpec

Place = tuple[tuple[int, ...], int]
"""Shape and address of one tensor."""


class KvCache(ABC):
    """`count` tensors of `[1, heads, positions, width]`, a key and a value for each layer."""

    def __init__(self, spec: ModelSpec, count: int, positions: int, kind: type[Any]) -> None:
        self._heads, self._width = spec.num_kv_heads, spec.head_dim
        self._count, self._positions, self._kind = count, positions, kind

    @abstractmethod
    def pasts(self, length: int) -> Iterator[Place]:
        """Where the keys and values of `length` positions are read."""

    @abstractmethod
    def presents(self, length: int) -> Iterator[Place]:
        """Where a pass leaves those of `length` positions, its own rows included."""

    @abstractmethod
    def keep(self, length: int, path: Sequence[int], rows: int) -> None:
        """Of the last pass' `rows` keep a path, after `length` positions."""

    @abstractmethod
    def truncate(self, old: int, length: int) -> None:
        """Forget all but the first `length` of `old` positions."""

    @abstractmethod
    def copy(self, length: int) -> NDArray[Any]:
        """[count, heads, length, width]"""

    @abstractmethod
    def restore(self, rows: NDArray[Any]) -> None:
        """Hold a copy's positions."""

    @property
    @abstractmethod
    def size_bytes(self) -> int: ...


class SharedCache(KvCache):
    """One buffer for past and present, as long as the context: a pass writes its rows behind
    those that are there.
    """

    def __init__(self, spec: ModelSpec, count: int, positions: int, kind: type[Any]) -> None:
        super().__init__(spec, count, positions, kind)
        self._rows = np.zeros((count, self._heads, positions, self._width), kind)

    @property
    def size_bytes(self) -> int:
        return self._rows.nbytes

    def pasts(self, length: int) -> Iterator[Place]:
        del length  # the attention mask tells it
        return ((part[None].shape, part.ctypes.data) for part in self._rows)

    def presents(self, length: int) -> Iterator[Place]:
        return self.pasts(length)

    def keep(self, length: int, path: Sequence[int], rows: int) -> None:
        if list(path) != list(range(len(path))):
            places = length + np.asarray(path)
            self._rows[:, :, length : length + len(path)] = self._rows[:, :, places]

    def truncate(self, old: int, length: int) -> None:
        """Nothing to do: what lies behind the text is written over."""

    def copy(self, length: int) -> NDArray[Any]:
        return self._rows[:, :, :length].copy()

    def restore(self, rows: NDArray[Any]) -> None:
        self._rows[:, :, : rows.shape[2]] = rows


class GrowingCache(KvCache):
    """Two buffers: a pass reads all positions from one and writes them, and its own, to the other;
    they change places when it is committed.
    """

    def __init__(self, spec: ModelSpec, count: int, positions: int, kind: type[Any]) -> None:
        super().__init__(spec, count, positions, kind)
        size = self._heads * positions * self._width
        self._past, self._next = (np.zeros((count, size), kind) for _ in range(2))

    @property
    def size_bytes(self) -> int:
        return 2 * self._past.nbytes

    def pasts(self, length: int) -> Iterator[Place]:
        return self._places(self._past, length)

    def presents(self, length: int) -> Iterator[Place]:
        return self._places(self._next, length)

    def _places(self, buffer: NDArray[Any], length: int) -> Iterator[Place]:
        shape = (1, self._heads, length, self._width)
        return ((shape, part.ctypes.data) for part in buffer)

    def _view(self, buffer: NDArray[Any], length: int) -> NDArray[Any]:
        """The first positions as rows, of which there are as many as were written together."""
        used = buffer[:, : self._heads * length * self._width]
        return used.reshape(self._count, self._heads, length, self._width)

    def keep(self, length: int, path: Sequence[int], rows: int) -> None:
        if len(path) == rows:
            self._past, self._next = self._next, self._past
            return
        written = self._view(self._next, length + rows)
        # Only chains are scored, so a path is its beginning; both are views, moved layer by layer.
        kept = self._view(self._past, length + len(path))
        kept[...] = written[:, :, : length + len(path)]

    def truncate(self, old: int, length: int) -> None:
        if length < old:
            kept = self._view(self._past, old)[:, :, :length].copy()
            self._view(self._past, length)[...] = kept

    def copy(self, length: int) -> NDArray[Any]:
        return self._view(self._past, length).copy()

    def restore(self, rows: NDArray[Any]) -> None:
        self._view(self._past, rows.shape[2])[...] = rows
