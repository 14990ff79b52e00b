"""The prompt cache: keys and values on disk of prompts that took long to compute, for any process.

Each block of 256 positions is a file of its own (`memory/kv/kv_file.py`), named after all tokens
before it and its own ones, so that prompts that begin alike share files and no index is needed:

    prompts/HASH OF MODEL AND TOKENS BEFORE-HASH OF OWN TOKENS.keys

The file's kind is the first of these hashes, in full. The last block of a text holds fewer tokens
than 256, and a prompt may need only the first tokens of a block: all blocks that follow the same
tokens are looked at for the one that it shares most with. When the cache is full, the blocks that
nobody has used longest go, the end of a text before its beginning. What models with windows or
states keep lies in the same folder, in other files (`memory/kv/prompt_texts.py`).

Source: "SGLang: Efficient Execution of Structured Language Model Programs", RadixAttention; here
the tree lies in the names.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import KvFileError
from edgespec.memory.kv.arena import BLOCK
from edgespec.memory.kv.kv_file import KvFile, KvHeader, write_kv
from edgespec.memory.kv.spill import RESERVE_BYTES
from edgespec.memory.plan.sizing import READERS
from edgespec.system.disk_cache import cache_folder, chosen_folder, open_own
from edgespec.system.ownership import why_shared
from edgespec.system.records import dataclass
from edgespec.system.size import format_size
from edgespec.system.user_data import make_private

FOLDER = "prompts"
"""In the cache folder."""
_OWN_BYTES, _NAMED_BYTES = 8, 16
_APART_NS = 1_000
"""Between the blocks of a text, so that its end counts as used before its beginning."""


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """Tokens that a file may hold the keys and values of."""

    path: Path
    before: bytes
    """What model computed them, after which tokens; 32 bytes."""
    ids: NDArray[np.int32]
    """Those that are wanted: the file's first, of at most 256."""


class PromptCache:
    """Blocks of one model in the user's cache folder, among those of others."""

    def __init__(self, folder: Path, limit_bytes: int, kind: bytes, block_bytes: int) -> None:
        """`kind` says what makes blocks worth nothing to others, `limit_bytes` what all files of
        the folder may take together.
        """
        self._folder, self._limit_bytes = folder, limit_bytes
        self._kind, self._block_bytes = kind, block_bytes
        self._file_bytes = self._header(b"", np.zeros(BLOCK, np.int32)).place(1)

    def find(self, ids: NDArray[np.int32]) -> list[CachedBlock]:
        """The blocks that hold the longest beginning of these tokens; what is in the files is seen
        when they are read.
        """
        found: list[CachedBlock] = []
        for block in self._blocks(ids):
            if len(block.ids) < BLOCK or not block.path.exists():
                return found + self._nearest(block)
            found.append(block)
        return found

    def read(
        self, found: Sequence[CachedBlock], into: Sequence[NDArray[np.uint8]]
    ) -> tuple[int, str]:
        """Fill blocks of memory with what was found; returns how many positions of them are sound,
        from the first on, and what is wrong with the next. Files that are damaged are removed.
        """
        wrongs = _each(self._read, found, into)
        sound = next((index for index, wrong in enumerate(wrongs) if wrong), len(found))
        self._touch(found[:sound])
        wrong = wrongs[sound] if sound < len(found) else None
        return sum(len(block.ids) for block in found[:sound]), wrong or ""

    def write(self, ids: NDArray[np.int32], contents: Sequence[NDArray[np.uint8]]) -> None:
        """Keep what the blocks of a text hold, as far as there is room for it; raises OSError."""
        make_private(self._folder)
        blocks = list(self._blocks(ids))[: self._limit_bytes // self._file_bytes]
        self._touch(blocks)
        new = [place for place, block in enumerate(blocks) if not block.path.exists()]
        if new:
            make_room(self._folder, self._limit_bytes, len(new) * self._file_bytes)
            _each(self._write, [blocks[at] for at in new], [contents[at] for at in new])
            self._touch(blocks)

    def _blocks(self, ids: NDArray[np.int32]) -> Iterator[CachedBlock]:
        """Where the blocks of a text are, if they are kept."""
        before = hashlib.blake2b(self._kind, digest_size=32)
        for start in range(0, len(ids), BLOCK):
            own = ids[start : start + BLOCK]
            told = own.astype("<i4").tobytes()
            digest, name = before.digest(), hashlib.blake2b(told, digest_size=_OWN_BYTES)
            path = self._folder / f"{_named(digest)}{name.hexdigest()}.keys"
            yield CachedBlock(path, digest, own)
            before.update(told)

    def _nearest(self, block: CachedBlock) -> list[CachedBlock]:
        """The kept block that has most of these tokens at its beginning, after the same tokens."""
        best = CachedBlock(block.path, block.before, block.ids[:0])
        for path in self._folder.glob(f"{_named(block.before)}*.keys"):
            with suppress(OSError, KvFileError), open_own(path) as file:
                kept = KvFile.open(path, file).header.ids
                size = min(len(kept), len(block.ids))
                differs = np.flatnonzero(kept[:size] != block.ids[:size])
                same = block.ids[: differs[0] if len(differs) else size]
                if len(same) > len(best.ids):
                    best = CachedBlock(path, block.before, same)
        return [best] if len(best.ids) else []

    def _read(self, block: CachedBlock, into: NDArray[np.uint8]) -> str | None:
        """Fill a block of memory; returns what is wrong with the file, None if nothing."""
        try:
            with open_own(block.path) as file:
                kept = KvFile.open(block.path, file)
                told = kept.header
                wanted = self._header(block.before, told.ids)
                same = np.array_equal(told.ids[: len(block.ids)], block.ids)
                form = told.kind, told.block_bytes, told.num_blocks, told.quick
                if not same or form != (wanted.kind, wanted.block_bytes, 1, True):
                    raise KvFileError(f"{block.path} holds another text")
                kept.read(file, 0, into)
        except FileNotFoundError:
            return "it is gone"
        except (OSError, KvFileError) as error:
            with suppress(OSError):
                block.path.unlink()
            return str(error)
        return None

    def _write(self, block: CachedBlock, content: NDArray[np.uint8]) -> None:
        write_kv(block.path, self._header(block.before, block.ids), [content], lasting=False)

    def _header(self, before: bytes, ids: NDArray[np.int32]) -> KvHeader:
        return KvHeader(before, self._block_bytes, ids, quick=True)

    def _touch(self, blocks: Sequence[CachedBlock]) -> None:
        touch([block.path for block in blocks])


def touch(paths: Sequence[Path]) -> None:
    """Files were used now, the last before the first."""
    now = time.time_ns()
    for place, path in enumerate(paths):
        with suppress(OSError):
            os.utime(path, ns=(now, now - place * _APART_NS))


def make_room(folder: Path, limit_bytes: int, num_bytes: int) -> None:
    """Remove what nobody has used longest until so many bytes more are within the limit; raises
    OSError when the disk has not got them.
    """
    files = sorted((status.st_mtime_ns, path, status.st_size) for path, status in _files(folder))
    total = sum(size for _, _, size in files)
    for _, path, size in files:
        if total + num_bytes <= limit_bytes:
            break
        with suppress(OSError):
            path.unlink()
            total -= size
    free = shutil.disk_usage(folder).free
    if free < num_bytes + RESERVE_BYTES:
        raise OSError(f"{folder} has {format_size(free)} free")


def _each(
    function: Callable[[CachedBlock, NDArray[np.uint8]], R],
    blocks: Sequence[CachedBlock],
    contents: Sequence[NDArray[np.uint8]],
) -> list[R]:
    """What a function says of each block, in several threads where the system has any."""
    from concurrent.futures import ThreadPoolExecutor

    try:
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(function, blocks, contents))
    except RuntimeError:  # no more threads
        return list(map(function, blocks, contents))


def prompt_folder() -> Path | None:
    """Where the user's prompts are kept; None where others could change them, which is said."""
    folder = cache_folder() / FOLDER
    why = why_shared(folder) if folder.exists() else ""
    if why:
        print(
            f"edgespec: prompts are neither read nor kept ({why}); delete {folder}", file=sys.stderr
        )
        return None
    return folder


def cached_prompts() -> tuple[int, int]:
    """How many blocks of prompts are kept, and their bytes."""
    sizes = [status.st_size for _, status in _files(chosen_folder() / FOLDER)]
    return len(sizes), sum(sizes)


def forget_prompts() -> int:
    """Delete all prompts that are kept; returns how many files there were. Raises OSError."""
    paths = [path for path, _ in _files(chosen_folder() / FOLDER)]
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All files of all models, those being written too."""
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                yield path, path.stat(follow_symlinks=False)


def _named(digest: bytes) -> str:
    return f"{digest[:_NAMED_BYTES].hex()}-"
