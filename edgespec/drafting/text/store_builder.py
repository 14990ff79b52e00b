"""Building a datastore from a folder of text or code.

"RASD: Retrieval-Augmented Speculative Decoding" and "REST: Retrieval-Based Speculative Decoding"
keep a suffix array beside the whole corpus; here, as in CodeSwift's multi-level caches, only what
followed each short context is kept, and where the table is full, what was seen least gives way.
So a store never exceeds its size, however large the corpus.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tables.followers import (
    NOBODY,
    SET_ROWS,
    STAMP,
    TOTAL,
    count,
    keys_in_text,
    row_for,
)
from edgespec.drafting.text.store import COLUMNS, HEADER_BYTES, ORDERS, write_store
from edgespec.errors import OptionError, StoreError
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.system.jit import kernel
from edgespec.system.records import dataclass

LEAST_ORDER = 2
"""Shorter contexts say little about what a text will be."""
SMALLEST_BYTES = 64 * 1024
_BLOCK_CHARACTERS = 1 << 16
_BYTES_PER_TOKEN = 3
"""Fewer than text has, so that the table is rather too large than too small."""
_SPARE = 1.5
"""Rows for each context expected: hashing fills sets unevenly."""


@kernel("int32[:,:]", "int64[:,:]", "int32[:]", "int64")
def count_corpus(
    rows: NDArray[np.int32], keys: NDArray[np.int64], text: NDArray[np.int32], begin: int
) -> None:
    """Count each token of text[begin:] after the contexts before it; what was seen least often
    makes room first.
    """
    for end in range(begin, len(text)):
        for order in range(LEAST_ORDER - 1, keys_in_text(text, end, keys)):
            row = row_for(rows, keys[order, 0], keys[order, 1], 0)
            count(rows, row, text[end], 1)
            rows[row, STAMP] = rows[row, TOTAL]


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What became of a folder."""

    files: int
    skipped: int
    """Files that are not UTF-8 text, or could not be read."""
    tokens: int
    size_bytes: int


def build_store(
    folder: str | os.PathLike[str],
    tokenizer: Tokenizer,
    out: str | os.PathLike[str],
    max_bytes: int,
    progress: Callable[[int, int], None] | None = None,
) -> BuildReport:
    """Read all text files of a folder, in order of their names, into a datastore of at most
    `max_bytes`; `progress` hears of bytes read, and of how many there are.

    Memory: the table, and a block of text. Links and hidden files are left out. Raises StoreError
    when the folder has no text or the file cannot be written, OptionError when `max_bytes` is too
    small to be of use.
    """
    if max_bytes < SMALLEST_BYTES:
        raise OptionError(
            f"a datastore of {max_bytes} bytes is too small to be of use; give it "
            f"{SMALLEST_BYTES} or more"
        )
    if not Path(folder).is_dir():
        raise StoreError(f"cannot read {folder}: there is no such folder; check the path")
    files = list(_files(Path(folder)))
    whole = sum(size for _, size in files)
    rows = np.zeros((_num_rows(whole, max_bytes), COLUMNS), np.int32)
    keys = np.zeros((ORDERS, 2), np.int64)
    done = read = tokens = 0
    for path, size in files:
        found = _read_file(path, tokenizer, rows, keys)
        read += found is not None
        tokens += found or 0
        done += size
        if progress is not None:
            progress(done, max(whole, 1))
    if not tokens:
        raise StoreError(f"cannot build a datastore of {folder}: it holds no UTF-8 text")
    try:
        write_store(Path(out), rows, tokens, tokenizer.vocab_size, tokenizer.fingerprint)
    except OSError as error:
        raise StoreError(
            f"cannot write the datastore {out}: {error.strerror or error}; choose another --out"
        ) from None
    return BuildReport(read, len(files) - read, tokens, HEADER_BYTES + rows.nbytes)


def _num_rows(corpus_bytes: int, max_bytes: int) -> int:
    """Rows for a corpus of this size, as far as the bytes go: a multiple of the set."""
    contexts = (ORDERS - LEAST_ORDER + 1) * (corpus_bytes // _BYTES_PER_TOKEN + 1)
    sets = min(int(_SPARE * contexts), (max_bytes - HEADER_BYTES) // (4 * COLUMNS)) // SET_ROWS
    return max(sets, 1) * SET_ROWS


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """All plain files below a folder and their sizes, hidden ones and links left out, in order of
    their names.
    """
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.is_symlink():
                continue
            if path.is_dir():
                yield from _files(path)
            elif path.is_file():
                yield path, path.stat().st_size


def _read_file(
    path: Path, tokenizer: Tokenizer, rows: NDArray[np.int32], keys: NDArray[np.int64]
) -> int | None:
    """Count a file's tokens into the table; None when it is not text."""
    tail = np.full(ORDERS, NOBODY, np.int32)
    num_tokens = 0
    # What was read before something went wrong counts.
    with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        while block := file.read(_BLOCK_CHARACTERS):
            if "\0" in block:
                break
            block += file.readline(_BLOCK_CHARACTERS)  # a token ends where a line does
            ids = np.array(tokenizer.encode(block, add_bos=False), np.int32)
            text = np.concatenate((tail, ids))
            count_corpus(rows, keys, text, ORDERS)
            tail = text[-ORDERS:]
            num_tokens += len(ids)
    return num_tokens or None
