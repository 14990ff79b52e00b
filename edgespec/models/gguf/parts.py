"""A GGUF model in several files (`NAME-00001-of-00003.gguf`), read as one.

The first part holds the metadata, each part its own tensors. Which files belong together is told by
their names alone, in one folder: nothing inside a file can name another. Source: llama.cpp's
`gguf-split`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import GgufHeader, read_header
from edgespec.models.spec import TensorInfo

MAX_PARTS = 1024
_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class JoinedSource:
    """The files of one model behind each other; offsets count from the first one's start."""

    def __init__(self, parts: list[FileSource]) -> None:
        self._parts = parts
        self._begins = [0, *accumulate(part.size_bytes for part in parts)]
        self.path = parts[0].path
        self.size_bytes = self._begins.pop()
        self.changed_ns = tuple(time for part in parts for time in part.changed_ns)

    def begin(self, number: int) -> int:
        """Where a part begins, in bytes."""
        return self._begins[number]

    def place(self, offset: int) -> tuple[Path, int]:
        """The file that holds a byte, and which of its bytes that is."""
        number = bisect_right(self._begins, offset) - 1
        return self._parts[number].path, offset - self._begins[number]

    def read(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return `num_bytes` of one part from `offset` as fresh memory, `[num_bytes]` u8."""
        number = bisect_right(self._begins, offset) - 1
        return self._parts[number].read(offset - self._begins[number], num_bytes)

    def close(self) -> None:
        for part in self._parts:
            part.close()


def open_gguf(path: Path) -> tuple[FileSource | JoinedSource, GgufHeader]:
    """Open a GGUF file, with all other parts of its model if it is one of several.

    The caller closes the source. Raises ModelFileError for damaged files, and for parts that are
    missing or do not belong together; UnsupportedModelError for what `read_header` does not cover.
    """
    source = FileSource(path)
    opened = [source]
    try:
        header = read_header(source)
        count = _number(path, header, "split.count", 1)
        if count <= 1:
            return source, header
        parts: list[tuple[FileSource, GgufHeader]] = []
        for number, place in enumerate(_places(path, header, count)):
            if place == path:
                parts.append((source, header))
                continue
            opened.append(_open_part(place, path, number, count))
            parts.append((opened[-1], read_header(opened[-1])))
        return _join(parts, count)
    except BaseException:
        for one in opened:
            one.close()
        raise


def _number(path: Path, header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelFileError(f"cannot open {path}: {key} is {value!r}; download it again")
    return value


def _places(path: Path, header: GgufHeader, count: int) -> Iterator[Path]:
    """Where the parts are, in order; raises ModelFileError where name and contents disagree."""
    if count > MAX_PARTS:
        raise ModelFileError(
            f"cannot open {path}: split.count is {count} (at most {MAX_PARTS} make sense); the "
            "file is damaged, download it again"
        )
    number = _number(path, header, "split.no", 0)
    found = _NAME.fullmatch(path.name)
    if found is None or (int(found[2]), int(found[3])) != (number + 1, count):
        raise ModelFileError(
            f"cannot open {path}: it is part {number + 1} of {count}, and is not called "
            f"...-{number + 1:05}-of-{count:05}.gguf, so its other parts cannot be found; give it "
            "the name it was published under"
        )
    return (path.with_name(f"{found[1]}-{no:05}-of-{count:05}.gguf") for no in range(1, count + 1))


def _open_part(place: Path, path: Path, number: int, count: int) -> FileSource:
    if not place.exists():
        raise ModelFileError(
            f"cannot open {path}: part {number + 1} of {count} is missing, {place}; download it "
            "into the same folder"
        )
    return FileSource(place)


def _join(
    parts: list[tuple[FileSource, GgufHeader]], count: int
) -> tuple[JoinedSource, GgufHeader]:
    """All parts as one file; raises ModelFileError when they do not belong together."""
    joined = JoinedSource([source for source, _ in parts])
    first = parts[0][1]
    total = _number(joined.path, first, "split.tensors.count", 0)
    tensors: dict[str, TensorInfo] = {}
    for number, (source, header) in enumerate(parts):
        stated = tuple(
            _number(source.path, header, key, default)
            for key, default in (
                ("split.no", 0), ("split.count", 1), ("split.tensors.count", total),
            )
        )  # fmt: skip
        if stated != (number, count, total):
            raise ModelFileError(
                f"cannot open {joined.path}: {source.path.name} says that it is part "
                f"{stated[0] + 1} of {stated[1]} of a model of {stated[2]} tensors, and it should "
                f"be part {number + 1} of {count} of {total}; download the parts of one model"
            )
        for name, info in header.tensors.items():
            if name in tensors:
                raise ModelFileError(
                    f"cannot open {joined.path}: tensor {name!r} is in two parts, the second "
                    f"{source.path.name}; download the parts of one model"
                )
            tensors[name] = replace(info, offset=joined.begin(number) + info.offset)
    if "split.tensors.count" in first.metadata and len(tensors) != total:
        raise ModelFileError(
            f"cannot open {joined.path}: its {count} parts hold {len(tensors)} tensors and it "
            f"promises {total}; download it again"
        )
    return joined, replace(first, tensors=tensors)
