"""BPE over whole lines of plain text, as in Gemma 4: SentencePiece's spelling, ranked merges.

Spaces are written as U+2581 and characters as themselves; what has no token falls back to the
tokens of its bytes.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy as np

from edgespec.models.gguf.keys import Keys
from edgespec.models.tokenizers.bpe import BpeTokenizer, pre_tokenizer
from edgespec.models.tokenizers.vocabulary import TokenKind

_SPACE = "\u2581"
_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>")
_LINES = re.compile(r"[^\n]+|\n+")
_BEFORE_SPACE = re.compile(f"([^{_SPACE}]){_SPACE}")
_MOST_GLUED = 64
_ID_BITS = 32


class LineBpeTokenizer(BpeTokenizer):
    """The `gemma4` tokenizer of GGUF files, and byte-pair ones that merge lines as it does."""

    def __init__(self, keys: Keys) -> None:
        """Build from the metadata of an open file; raises ModelFileError, UnsupportedModelError."""
        super().__init__(keys)
        if pre_tokenizer(keys).add_bos:  # older files deny what the model was trained with
            self._add_bos = self.bos_id is not None

    def _learn(self, merges: list[bytes]) -> None:
        """Keep ranks by the pair's ids, sorted: Gemma's half a million pairs take 8 MB so, and
        80 MB in a dictionary of their texts. A merge that is not of two tokens can't be met.
        """
        self._word_starts = _word_starts(merges)
        ids = self._ids
        pairs = np.fromiter((_pair(ids, merge) for merge in merges), np.int64, len(merges))
        order = np.argsort(pairs, kind="stable")  # of a merge stated twice the first counts
        self._pairs, self._order = array("q", pairs[order].tobytes()), array("q", order.tobytes())

    def _rank(self, left: bytes, right: bytes) -> int | None:
        one, two = self._ids.get(left), self._ids.get(right)
        if one is None or two is None or left + right in self._hidden:
            return None
        pair = one << _ID_BITS | two
        place = bisect_left(self._pairs, pair)
        found = place < len(self._pairs) and self._pairs[place] == pair
        return self._order[place] if found else None

    def token_bytes(self, token_id: int) -> bytes:
        text = self._vocabulary.text(token_id)
        kind = int(self._vocabulary.kinds[token_id])
        if kind == TokenKind.NORMAL:
            return text.replace(_SPACE.encode(), b" ")
        if kind == TokenKind.USER_DEFINED:
            return text
        match = _BYTE.fullmatch(text) if kind == TokenKind.BYTE else None
        return bytes([int(match[1], 16)]) if match else b""

    def _words(self, text: str) -> Iterator[str]:
        for line in _LINES.findall(text.replace(" ", _SPACE)):
            if self._word_starts is None:
                yield line
                continue
            begin = 0
            for start in self._word_starts.finditer(line):
                yield line[begin : start.start()]
                begin = start.start()
            yield line[begin:]

    def _ids_of(self, part: bytes) -> tuple[int, ...]:
        token_id = self._ids.get(part)
        if token_id is not None:
            return (token_id,)
        found = (self._ids.get(f"<0x{byte:02X}>".encode()) for byte in part)
        return tuple(token_id for token_id in found if token_id is not None)


def _pair(ids: dict[bytes, int], merge: bytes) -> int:
    """Both ids in one number, -1 where one of the two is no token."""
    left, _, right = merge.partition(b" ")
    one, two = ids.get(left), ids.get(right)
    return -1 if one is None or two is None else one << _ID_BITS | two


def _word_starts(merges: Iterable[bytes]) -> re.Pattern[str] | None:
    """Where no merge can join what lies before with what lies after: at a space after a character
    that no merged text has before a space. None when there are many such characters.

    Most of a text is then words that were seen before.
    """
    space = _SPACE.encode()
    inside = (merge for merge in merges if merge.find(space, 1) > 0)
    texts = (merge.replace(b" ", b"").decode("utf-8", "replace") for merge in inside)
    glued = {character for text in texts for character in _BEFORE_SPACE.findall(text)}
    if len(glued) > _MOST_GLUED:
        return None
    return re.compile(f"(?<=[^{_SPACE}{re.escape(''.join(sorted(glued)))}])(?={_SPACE})")
