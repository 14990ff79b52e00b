"""Earlier replies kept between runs, by consent (`--learn`), in a file that only its owner reads.

    offset  bytes
    0       8      magic "EDGEPAST"
    8       4 x 3  version, size of the vocabulary, tokens
    20      16     fingerprint of the vocabulary
    36      4 each tokens, oldest first; -1 stands before each reply
    after   16     BLAKE2b of everything before

All numbers are little-endian. A file is hostile until checked: one that is damaged, or too long, is
told of once and not used. It never holds more than the past that wrote it.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tables.followers import NOBODY
from edgespec.drafting.text.past import Past
from edgespec.system.user_data import data_folder, make_private, user_folder, write_private

VERSION = 1
FOLDER = "history"
_HEAD = struct.Struct("<8s3I16s")
_MAGIC = b"EDGEPAST"
_DIGEST_BYTES = 16
_MOST_BYTES = 64 * 2**20


class KeptPast(Past):
    """A past of one vocabulary with a file behind it, unless the user wants nothing kept."""

    def __init__(self, max_bytes: int, vocabulary: bytes, vocab_size: int) -> None:
        super().__init__(max_bytes)
        self._vocabulary, self._vocab_size = vocabulary, vocab_size
        folder = data_folder()
        name = f"{vocabulary.hex()}.replies"
        self._path = None if folder is None else folder / FOLDER / name
        if self._path is not None:
            self._read(self._path)
        self._num_saved = self.num_tokens

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                raw = file.read(_MOST_BYTES)
        except OSError:
            return  # there is none yet, or it cannot be read: both only cost learning again
        tokens = self._tokens_in(raw)
        if tokens is None:
            print(
                f"edgespec: {path} is damaged or of another version; starting a new history",
                file=sys.stderr,
            )
        else:
            self.write(tokens[-self.capacity :])

    def _tokens_in(self, raw: bytes) -> NDArray[np.int32] | None:
        """The tokens in a file's bytes; None when they are not this file's."""
        content, digest = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
        body = content[_HEAD.size :]
        head = _HEAD.pack(_MAGIC, VERSION, self._vocab_size, len(body) // 4, self._vocabulary)
        if len(body) % 4 or not content.startswith(head) or digest != _digest(content):
            return None
        tokens = np.frombuffer(body, "<i4").astype(np.int32)
        possible = bool(((tokens >= NOBODY) & (tokens < self._vocab_size)).all())
        return tokens if possible else None

    def save(self) -> None:
        """Write the file if there is something new; a folder that cannot be written keeps none."""
        if self._path is None or self.num_tokens == self._num_saved:
            return
        tokens = self.tokens()
        head = _HEAD.pack(_MAGIC, VERSION, self._vocab_size, len(tokens), self._vocabulary)
        content = head + tokens.astype("<i4").tobytes()
        with suppress(OSError):
            make_private(self._path.parent)
            write_private(self._path, [content, _digest(content)])
            self._num_saved = self.num_tokens


def forget_history() -> int:
    """Delete what was learnt from replies, of all vocabularies; returns how many files there were.

    Raises OSError where one cannot be deleted.
    """
    folder = user_folder() / FOLDER
    if not folder.is_dir():
        return 0
    num_files = sum(1 for _ in folder.iterdir())
    import shutil

    shutil.rmtree(folder)
    return num_files


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()
