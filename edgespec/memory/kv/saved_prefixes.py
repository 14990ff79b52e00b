"""Saved prefixes: a named system message or text, with its keys and values.

A prefix is a file in the user's data folder, `prefixes/NAME.keys` (`memory/kv/kv_file.py`), whose
note is the text. It is mapped into memory and its pages are the blocks that replies begin with:
read, shared by all of them, copied by whoever writes into one. What models with windows or states
keep is read whole instead, and shared once it is there. What was saved by another model,
with another KV type or by other kernels still has the text, and is computed again.

"Prompt Cache: Modular Attention Reuse for Low-Latency Inference": here a module is a beginning.
"""

from __future__ import annotations

import json
import mmap
import operator
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import KvFileError, OptionError
from edgespec.memory.kv.kv_file import KvFile, KvHeader, Outline, write_kv
from edgespec.system.lost_pages import guard
from edgespec.system.records import dataclass
from edgespec.system.user_data import make_private, user_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a saved prefix says; whether its keys and values are sound is seen when it is used."""

    name: str
    text: str
    raw: bool
    """The text itself, not a system message of it."""
    model: str
    """Name of the model that computed it."""
    header: KvHeader
    size_bytes: int
    outline: Outline | None = None
    """What the blocks are, of a model with windows or states."""

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "tokens": len(self.header.ids),
            "bytes": self.size_bytes,
            "model": self.model,
            "raw": self.raw,
            "text": self.text,
        }


def folder() -> Path:
    """Where prefixes are."""
    return user_folder() / "prefixes"


def check_name(name: str) -> str:
    """The name, if it can be one; raises OptionError."""
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"a prefix cannot be called {name!r}: names have up to 64 letters, digits, '.', '_' "
            "and '-', the first a letter or digit"
        )
    return name


def save(prefix: Prefix, blocks: Sequence[NDArray[np.uint8]]) -> int:
    """Write a prefix in place of any of its name; returns the file's bytes, raises KvFileError."""
    told: dict[str, object] = {"text": prefix.text, "raw": prefix.raw, "model": prefix.model}
    if prefix.outline is not None:
        told |= {"firsts": prefix.outline.firsts, "states": prefix.outline.states}
    noted = replace(prefix.header, note=json.dumps(told))
    try:
        make_private(folder())
        return write_kv(_path(prefix.name), noted, blocks)
    except OSError as error:
        raise KvFileError(
            f"the prefix {prefix.name} cannot be saved in {folder()}: {error.strerror or error}; "
            "make room there, or set EDGESPEC_DATA to another folder"
        ) from None


def read(name: str) -> Prefix:
    """A prefix without its keys and values; raises KvFileError when there is none or its file is
    damaged.
    """
    with _opened(name) as file:
        return _prefix(name, KvFile.open(_path(name), file))


def blocks(prefix: Prefix, count: int) -> list[NDArray[np.uint8]]:
    """The first blocks of keys and values, mapped and checked; raises KvFileError."""
    with _opened(prefix.name) as file:
        kept = _same(prefix, file)
        guard()  # a block that is gone does not pass its check
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = []
    for index in range(count):
        place = kept.header.place(index)
        found.append(np.frombuffer(pages, np.uint8, kept.header.block_bytes, place))
        kept.check(index, found[-1])
    return found


def fill(prefix: Prefix, into: Sequence[NDArray[np.uint8]]) -> None:
    """Read all blocks into memory that is as large as they should be; raises KvFileError."""
    with _opened(prefix.name) as file:
        kept = _same(prefix, file)
        if kept.header.sizes != tuple(map(len, into)):
            told = f"{_path(prefix.name)} holds other blocks than it says"
            raise KvFileError(f"{told}; save it again")
        for index, content in enumerate(into):
            kept.read(file, index, content)


def _same(prefix: Prefix, file: BinaryIO) -> KvFile:
    """The file that a prefix was read from."""
    kept = KvFile.open(_path(prefix.name), file)
    if _prefix(prefix.name, kept).header.kind != prefix.header.kind:
        raise KvFileError(f"the prefix {prefix.name} was saved anew meanwhile; try again")
    return kept


def saved() -> list[str]:
    """Names of all prefixes, sorted."""
    found = folder().glob("*.keys") if folder().is_dir() else iter(())
    return sorted(path.stem for path in found if _NAME.fullmatch(path.stem))


def remove(name: str) -> None:
    """Delete a prefix; raises KvFileError when there is none."""
    try:
        _path(name).unlink()
    except FileNotFoundError:
        raise _missing(name) from None
    except OSError as error:
        raise KvFileError(f"cannot remove {_path(name)}: {error.strerror or error}") from None


def _path(name: str) -> Path:
    return folder() / f"{check_name(name)}.keys"


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    try:
        with _path(name).open("rb") as file:
            yield file
    except FileNotFoundError:
        raise _missing(name) from None
    except (OSError, ValueError) as error:  # mmap of a file that was cut meanwhile
        raise KvFileError(f"cannot read {_path(name)}: {error}; save the prefix again") from None


def _prefix(name: str, kept: KvFile) -> Prefix:
    try:
        told = json.loads(kept.header.note)
        text, raw, model = told["text"], told["raw"], told["model"]
    except (ValueError, TypeError, KeyError, RecursionError):
        text = raw = model = None
    if not isinstance(text, str) or not isinstance(raw, bool) or not isinstance(model, str):
        raise KvFileError(f"{_path(name)} holds no prefix; save it again")
    size_bytes = kept.header.place(kept.header.num_blocks)
    outline = _outline(name, told, len(kept.header.ids)) if kept.header.sizes else None
    return Prefix(name, text, raw, model, kept.header, size_bytes, outline)


def _outline(name: str, told: dict[str, Any], length: int) -> Outline:
    """What a file says its blocks are; whether they can be is for the store to say."""
    try:
        firsts = tuple(map(operator.index, told["firsts"]))
        states = tuple((operator.index(at), operator.index(odd)) for at, odd in told["states"])
    except (KeyError, TypeError, ValueError):
        raise KvFileError(f"{_path(name)} does not say what it holds; save it again") from None
    return Outline(length, firsts, states)


def _missing(name: str) -> KvFileError:
    known = ", ".join(saved())
    return KvFileError(
        f"no prefix is called {name}; "
        + (f"there are {known}" if known else "save one with `edgespec prefix save`")
    )
