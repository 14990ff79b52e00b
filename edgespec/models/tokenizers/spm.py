"""SentencePiece-style tokenizing: score-driven merges with byte fallback.

Source: "SentencePiece: A simple and language independent subword tokenizer and detokenizer for
Neural Text Processing", section 3.1, with the merge order of llama.cpp's `llm_tokenizer_spm`.
"""

from __future__ import annotations

import re

from edgespec.errors import ModelFileError
from edgespec.models.gguf.keys import Keys
from edgespec.models.tokenizers.pair_merging import merge
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.models.tokenizers.vocabulary import TokenKind, Vocabulary

_SPACE = "▁"
_WORD = re.compile(f"{_SPACE}+[^{_SPACE}]*|[^{_SPACE}]+")
_SPACE_INSIDE = re.compile(f"[^{_SPACE}]{_SPACE}")
_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>")
_MAX_CACHED_WORDS = 1 << 14
_MAX_CACHED_LENGTH = 64


class SpmTokenizer(Tokenizer):
    """The `llama` tokenizer of GGUF files.

    Unlike llama.cpp, merges never spell a control or byte token: text stays text.
    """

    def __init__(self, keys: Keys) -> None:
        """Build from the metadata of an open file; raises ModelFileError."""
        vocabulary = Vocabulary(keys, default_bos=1, default_eos=2)
        super().__init__(vocabulary, add_bos=True)
        self._add_space_prefix = keys.flag("tokenizer.ggml.add_space_prefix", True)
        self._ids: dict[str, int] = {}
        """Mergeable tokens."""
        self._byte_ids = [-1] * 256
        self._scores: list[float] = vocabulary.scores().tolist()
        for token_id, (text, kind) in enumerate(
            zip(vocabulary.texts(), vocabulary.kinds.tolist(), strict=True)
        ):
            if kind == TokenKind.BYTE:
                if match := _BYTE.fullmatch(text):
                    self._byte_ids[int(match[1], 16)] = token_id
            elif kind not in (TokenKind.CONTROL, TokenKind.UNKNOWN):
                self._ids[text.decode("utf-8", "replace")] = token_id
        self._fill_bytes()
        # Where no token has a space after a letter, no merge crosses a word's start, and equal
        # words have equal ids: most of a text is then a dictionary look-up.
        self._by_word = not any(map(_SPACE_INSIDE.search, self._ids))
        self._cache: dict[str, list[int]] = {}

    def token_bytes(self, token_id: int) -> bytes:
        text = self._vocabulary.text(token_id)
        kind = int(self._vocabulary.kinds[token_id])
        if kind == TokenKind.NORMAL:
            return text.replace(b"\xe2\x96\x81", b" ")
        if kind == TokenKind.USER_DEFINED:
            return text
        match = _BYTE.fullmatch(text) if kind == TokenKind.BYTE else None
        return bytes([int(match[1], 16)]) if match else b""

    def _fill_bytes(self) -> None:
        """A byte without a token of its own falls back to its character, then to unknown."""
        unknown = self._vocabulary.unknown_id or 0
        for byte, token_id in enumerate(self._byte_ids):
            if token_id < 0:
                self._byte_ids[byte] = self._ids.get(chr(byte), unknown) if byte < 128 else unknown
        if not self._ids:
            raise ModelFileError(
                f"cannot read the tokenizer of {self._vocabulary.keys.path}: none of its "
                f"{len(self._vocabulary)} tokens is text; convert the model again"
            )

    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        if after_special and self._add_space_prefix:
            text = " " + text
        text = text.replace(" ", _SPACE)
        if not self._by_word:
            return self._merge(text)
        ids: list[int] = []
        cache = self._cache
        for word in _WORD.findall(text):
            known = cache.get(word)
            if known is None:
                known = self._merge(word)
                if len(cache) >= _MAX_CACHED_WORDS:
                    cache.clear()
                if len(word) <= _MAX_CACHED_LENGTH:
                    cache[word] = known
            ids += known
        return ids

    def _merge(self, word: str) -> list[int]:
        parts = merge(list(word), self._rank)
        return [token_id for part in parts for token_id in self._ids_of(part)]

    def _rank(self, left: str, right: str) -> float | None:
        token_id = self._ids.get(left + right)
        return None if token_id is None else -self._scores[token_id]

    def _ids_of(self, part: str) -> list[int]:
        token_id = self._ids.get(part)
        if token_id is not None:
            return [token_id]
        return [self._byte_ids[byte] for byte in part.encode("utf-8")]
