"""Arrays of strings in a GGUF file, kept as offsets until somebody asks for the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from edgespec.models.gguf.file_source import FileSource


class StringArray(Sequence[str]):
    """A GGUF array of strings: 4 bytes of memory per string, text read from the file on demand."""

    def __init__(
        self, source: FileSource, start: int, size_bytes: int, offsets: NDArray[np.uint32]
    ) -> None:
        """`offsets[i]` is where text i starts, after its 8-byte length, relative to `start`."""
        self._source = source
        self._start = start
        self._size_bytes = size_bytes
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(range(len(self))[index]).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (text.decode("utf-8", "replace") for text in self.all_raw())

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"

    def raw(self, index: int) -> bytes:
        """The bytes of one string, read from the file."""
        begin = int(self._offsets[index])
        last = index + 1 == len(self._offsets)
        end = self._size_bytes if last else int(self._offsets[index + 1]) - 8
        return self._source.read(self._start + begin, end - begin).tobytes()

    def all_raw(self) -> list[bytes]:
        """Every string as bytes, in order, with one read of the file."""
        if not len(self):
            return []
        blob = self._source.read(self._start, self._size_bytes).tobytes()
        begins: list[int] = self._offsets.tolist()
        ends = [begin - 8 for begin in begins[1:]] + [self._size_bytes]
        return [blob[begin:end] for begin, end in zip(begins, ends, strict=True)]


class Texts(StringArray):
    """The same of strings that are in memory, because their file keeps them otherwise."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [text.encode("utf-8", "replace") for text in texts]

    def __len__(self) -> int:
        return len(self._texts)

    def raw(self, index: int) -> bytes:
        return self._texts[index]

    def all_raw(self) -> list[bytes]:
        return self._texts
