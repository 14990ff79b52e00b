"""Building a datastore from a folder of text or code.

"RASD: Retrieval-Augmented Speculative Decoding" and "REST: Retrieval-Based Speculative Decoding"
keep a suffix array beside the corpus, and so does this. "CodeSwift: Accelerating LLM Inference for
Efficient Code Generation" draws on the repository that is worked on: files near the one that is
edited come first here, so that of a folder that does not fit it is the far ones that are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tables.followers import NOBODY
from edgespec.drafting.text.store import (
    BYTES_PER_TOKEN,
    HEADER_BYTES,
    MOST_TOKENS,
    VERSION,
    StoreHeader,
    digest_of,
    write_store,
)
from edgespec.drafting.text.store_kernels import LONGEST
from edgespec.errors import OptionError, StoreError
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.system.folder_files import files_below, nearness
from edgespec.system.records import dataclass

SMALLEST_BYTES = 64 * 1024
_BLOCK_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What became of a folder."""

    files: int
    skipped: int
    """Files that are not UTF-8 text, could not be read, or found no room."""
    tokens: int
    size_bytes: int
    was_current: bool = False
    """The store held these very files already, and was left as it is."""


def build_store(
    folder: str | os.PathLike[str],
    tokenizer: Tokenizer,
    out: str | os.PathLike[str],
    max_bytes: int,
    progress: Callable[[int, int], None] | None = None,
    near: str | os.PathLike[str] | None = None,
) -> BuildReport:
    """Read the text files of a folder into a datastore of at most `max_bytes`, those near a file of
    it first; `progress` hears of bytes read, and of how many there are. Where the store holds the
    files as they are, nothing is read.

    Memory: about six times the file's size, while it is sorted. Links and hidden files are left
    out. Raises StoreError when the folder has no text or the file cannot be written, OptionError
    when `max_bytes` is too small to be of use.
    """
    if max_bytes < SMALLEST_BYTES:
        raise OptionError(
            f"a datastore of {max_bytes} bytes is too small to be of use; give it "
            f"{SMALLEST_BYTES} or more"
        )
    if not Path(folder).is_dir():
        raise StoreError(f"cannot read {folder}: there is no such folder; check the path")
    root, place = Path(folder).resolve(), Path(out)
    files = _in_order(root, None if near is None else root / near)
    stamp = _stamp(root, files, max_bytes)
    with suppress(StoreError):  # there is none yet, or it is not what it should be
        old = StoreHeader.read(place)
        if (old.stamp, old.vocabulary) == (stamp, tokenizer.fingerprint):
            counts = old.num_files, old.num_skipped, old.num_tokens - old.num_files
            return BuildReport(*counts, old.size_bytes, was_current=True)
    text, num_files = _read(files, tokenizer, max_bytes, progress)
    if not num_files:
        raise StoreError(f"cannot build a datastore of {folder}: it holds no UTF-8 text")
    header = StoreHeader(
        len(text), num_files, len(files) - num_files, tokenizer.vocab_size, tokenizer.fingerprint,
        stamp,
    )  # fmt: skip
    try:
        write_store(place, header, text, sorted_by_context(text))
    except OSError as error:
        raise StoreError(
            f"cannot write the datastore {out}: {error.strerror or error}; choose another --out"
        ) from None
    counts = num_files, header.num_skipped, len(text) - num_files
    return BuildReport(*counts, header.size_bytes)


def sorted_by_context(text: NDArray[np.int32]) -> NDArray[np.int32]:
    """All places of a text, in order of the tokens before them, the nearest first, up to LONGEST;
    before the text's beginning is NOBODY. By doubling, as suffix arrays are made.
    """
    rank = np.zeros(len(text), np.int64)
    rank[1:] = text[:-1] - NOBODY
    order, length = np.argsort(rank, kind="stable"), 1
    while length < LONGEST:
        further = np.zeros(len(text), np.int64)
        further[length:] = rank[:-length]
        key = rank * (int(rank.max()) + 1) + further
        del further
        order = np.argsort(key, kind="stable")
        key = key[order]
        rank[order] = np.concatenate(([0], np.cumsum(key[1:] != key[:-1])))
        length *= 2
    return order.astype(np.int32)


def _in_order(root: Path, near: Path | None) -> list[tuple[Path, os.stat_result]]:
    """The files below a folder, those near a file of it first, that one last, else in order of
    their names.
    """
    found = []
    for path in files_below(root):
        with suppress(OSError):
            found.append((path, path.stat()))

    def rank(one: tuple[Path, os.stat_result]) -> tuple[bool, float, Path]:
        path = one[0]
        return path == near, 0.0 if near is None else -nearness(path, near), path

    return sorted(found, key=rank)


def _stamp(root: Path, files: Sequence[tuple[Path, os.stat_result]], max_bytes: int) -> bytes:
    """What tells whether a store holds these files as they are, in this order."""
    lines = [f"{VERSION} {max_bytes}"]
    for path, stat in files:
        lines.append(f"{path.relative_to(root)}\0{stat.st_size}\0{stat.st_mtime_ns}")
    return digest_of("\n".join(lines).encode("utf-8", "surrogateescape"))


def _read(
    files: Sequence[tuple[Path, os.stat_result]],
    tokenizer: Tokenizer,
    max_bytes: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[NDArray[np.int32], int]:
    """The files' tokens, as many as there is room for, and how many files they are of."""
    room = min((max_bytes - HEADER_BYTES) // BYTES_PER_TOKEN, MOST_TOKENS)
    whole = sum(stat.st_size for _, stat in files)
    pieces: list[NDArray[np.int32]] = []
    done = num_files = 0
    for path, stat in files:
        begun = False
        for piece in _pieces(path, tokenizer):
            if room < 2:
                break
            if not begun:
                pieces.append(np.array([NOBODY], np.int32))
                begun, room = True, room - 1
            pieces.append(piece[:room])
            room -= len(pieces[-1])
        num_files += begun
        done += stat.st_size
        if progress is not None:
            progress(done, max(whole, 1))
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int32), num_files


def _pieces(path: Path, tokenizer: Tokenizer) -> Iterator[NDArray[np.int32]]:
    """A file's tokens, block after block; what was read before something went wrong counts."""
    with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        while block := file.read(_BLOCK_CHARACTERS):
            if "\0" in block:
                return
            block += file.readline(_BLOCK_CHARACTERS)  # a token ends where a line does
            ids = tokenizer.encode(block, add_bos=False)
            if ids:
                yield np.array(ids, np.int32)
