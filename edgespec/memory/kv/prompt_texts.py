"""The prompt cache of models with windows or states: whole texts, each in a file of its own.

A window holds the end of a text only, and a state is worth something at its own position alone. So
a file has all that a sequence holds when a reply has ended (`memory/kv/kv_file.py`), its note says
what that is, and a prompt begins where such a sequence could return to: at its end, at one of its
checkpoints, or nowhere.

    prompts/HASH OF MODEL-HASH OF TOKENS.keys
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import KvFileError
from edgespec.memory.kv.kv_file import KvFile, KvHeader, Outline, write_kv
from edgespec.memory.kv.prompt_cache import make_room, touch
from edgespec.system.disk_cache import open_own
from edgespec.system.records import dataclass
from edgespec.system.user_data import make_private

_KIND_BYTES, _NAME_BYTES = 16, 8


@dataclass(frozen=True, slots=True)
class CachedText:
    """A file that holds a text, as its header says."""

    path: Path
    ids: NDArray[np.int32]
    outline: Outline
    sizes: tuple[int, ...]


class PromptTexts:
    """Texts of one model in the user's cache folder, among those of others."""

    def __init__(self, folder: Path, limit_bytes: int, kind: bytes) -> None:
        """`kind`, 32 bytes, says what makes them worth nothing to others, `limit_bytes` what all
        files of the folder may take together.
        """
        self._folder, self._limit_bytes, self._kind = folder, limit_bytes, kind

    def texts(self) -> Iterator[CachedText]:
        """All that are kept; what is in the files is seen when they are read."""
        for path in sorted(self._folder.glob(f"{self._kind[:_KIND_BYTES].hex()}-*.keys")):
            with suppress(OSError, KvFileError), open_own(path) as file:
                yield self._text(KvFile.open(path, file))

    def read(self, text: CachedText, into: Sequence[NDArray[np.uint8]]) -> None:
        """Fill a sequence's memory with what a text holds; raises KvFileError, and then removes the
        file.
        """
        try:
            with open_own(text.path) as file:
                kept = KvFile.open(text.path, file)
                same = np.array_equal(kept.header.ids, text.ids)
                if not same or kept.header.sizes != tuple(map(len, into)):
                    raise KvFileError(f"{text.path} holds another text")
                for index, content in enumerate(into):
                    kept.read(file, index, content)
        except FileNotFoundError:
            raise KvFileError("it is gone") from None
        except (OSError, KvFileError) as error:
            with suppress(OSError):
                text.path.unlink()
            raise KvFileError(str(error)) from None
        touch([text.path])

    def write(
        self, ids: NDArray[np.int32], outline: Outline, contents: Sequence[NDArray[np.uint8]]
    ) -> None:
        """Keep a text, if the limit has room for it; raises OSError."""
        name = hashlib.blake2b(ids.astype("<i4").tobytes(), digest_size=_NAME_BYTES).hexdigest()
        path = self._folder / f"{self._kind[:_KIND_BYTES].hex()}-{name}.keys"
        note = json.dumps({"firsts": outline.firsts, "states": outline.states})
        header = KvHeader(self._kind, 0, ids, note, tuple(map(len, contents)), quick=True)
        size_bytes = header.place(len(contents))
        if path.exists():
            touch([path])
        elif size_bytes <= self._limit_bytes:
            make_private(self._folder)
            make_room(self._folder, self._limit_bytes, size_bytes)
            write_kv(path, header, contents, lasting=False)

    def _text(self, kept: KvFile) -> CachedText:
        told = kept.header
        if told.kind != self._kind or not told.sizes or not told.quick:
            raise KvFileError(f"{kept.path} holds another text")
        try:
            note = json.loads(told.note)
            firsts = tuple(map(operator.index, note["firsts"]))
            states = tuple((operator.index(at), operator.index(by)) for at, by in note["states"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise KvFileError(f"{kept.path} does not say what it holds") from None
        return CachedText(kept.path, told.ids, Outline(len(told.ids), firsts, states), told.sizes)
