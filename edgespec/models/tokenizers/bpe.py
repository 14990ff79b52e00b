"""Byte-level BPE tokenizing.

The `regex` package cuts the text into words (its expressions know Unicode's classes). The merges
run here: Hugging Face's `tokenizers` takes 0.8 s and 120 MB for 150k of them at every start, and
two dictionaries of the file's own bytes take 0.15 s and 55 MB.
Source: "Language Models are Unsupervised Multitask Learners", section 2.2.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.keys import Keys
from edgespec.models.gguf.strings import StringArray
from edgespec.models.tokenizers.pair_merging import merge
from edgespec.models.tokenizers.pretokenizers import PRE_TOKENIZERS, PreTokenizer, in_threes
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.models.tokenizers.vocabulary import TokenKind, Vocabulary

_NORMAL, _USER_DEFINED = int(TokenKind.NORMAL), int(TokenKind.USER_DEFINED)  # asked every token
_MAX_CACHED_WORDS = 1 << 14
_MAX_CACHED_LENGTH = 64


class BpeTokenizer(Tokenizer):
    """The `gpt2` tokenizer of GGUF files.

    Unlike llama.cpp, merges never spell a control token: text stays text. As there, a character
    for whose bytes the vocabulary has no token is left out.
    """

    def __init__(self, keys: Keys) -> None:
        """Build from the metadata of an open file; raises ModelFileError, UnsupportedModelError."""
        pre = pre_tokenizer(keys)
        vocabulary = Vocabulary(keys, default_bos=None, default_eos=None)
        super().__init__(vocabulary, add_bos=pre.add_bos)
        self._pre = pre
        self._ids = {text: token_id for token_id, text in enumerate(vocabulary.texts())}
        hidden = vocabulary.ids_of(TokenKind.CONTROL, TokenKind.UNKNOWN)
        self._hidden = frozenset(map(vocabulary.text, hidden))
        for text in self._hidden:
            self._ids.pop(text, None)
        self._learn(_merges(keys))
        self._cache: dict[str, list[int]] = {}

    def token_bytes(self, token_id: int) -> bytes:
        text = self._vocabulary.text(token_id)
        kind = int(self._vocabulary.kinds[token_id])
        if kind == _NORMAL:
            return b"".join(
                BYTES_OF.get(character) or character.encode()
                for character in text.decode("utf-8", "replace")
            )
        return text if kind == _USER_DEFINED else b""

    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        ids: list[int] = []
        cache = self._cache
        for word in self._words(text):
            known = cache.get(word)
            if known is None:
                known = self._encode_word(word)
                if len(cache) >= _MAX_CACHED_WORDS:
                    cache.clear()
                if len(word) <= _MAX_CACHED_LENGTH:
                    cache[word] = known
            ids += known
        return ids

    def _words(self, text: str) -> Iterator[str]:
        """The pieces of a text that are merged by themselves, in GPT-2's printable stand-ins."""
        for part in self._in_threes(text) if self._pre.thousands else (text,):
            for word in cut(part, self._patterns):
                yield word.encode().decode("latin-1").translate(STAND_INS)

    def _in_threes(self, text: str) -> Iterator[str]:
        """A text cut within its numbers; as in llama.cpp, "numbers" leaves what lies before a
        number with its first digits.
        """
        before = ""
        for run in cut(text, compiled((r"\p{N}+",))):
            if unicodedata.category(run[0])[0] == "N":
                first, *others = in_threes(run, self._pre.thousands)
                yield before + first
                yield from others
                before = ""
            elif self._pre.thousands == "numbers":
                before = run
            else:
                yield run
        if before:
            yield before

    @cached_property
    def _patterns(self) -> Sequence[Any]:
        return compiled(self._pre.patterns)

    def _encode_word(self, word: str) -> list[int]:
        if self._pre.ignore_merges or (self._pre.whole_newlines and not word.strip("\n")):
            token_id = self._ids.get(word.encode())
            if token_id is not None:
                return [token_id]
        parts = merge([character.encode() for character in word], self._rank)
        return [token_id for part in parts for token_id in self._ids_of(part)]

    def _ids_of(self, part: bytes) -> tuple[int, ...]:
        token_id = self._ids.get(part)
        return () if token_id is None else (token_id,)

    def _learn(self, merges: list[bytes]) -> None:
        """Keep ranks by `left right`, the file's own spelling; of a merge stated twice the first
        counts.
        """
        merges.reverse()
        self._ranks = dict(zip(merges, range(len(merges) - 1, -1, -1), strict=True))

    def _rank(self, left: bytes, right: bytes) -> int | None:
        found = self._ranks.get(left + b" " + right)
        return None if found is None or left + right in self._hidden else found


def pre_tokenizer(keys: Keys) -> PreTokenizer:
    """What a file says of its words; raises UnsupportedModelError for an unknown name.

    A file that names none is cut as llama.cpp cuts it, which suits GPT-NeoX and its kin.
    """
    if keys.text("tokenizer.ggml.model", "") == "gemma4":
        return PRE_TOKENIZERS["gemma4"]
    name = keys.text("tokenizer.ggml.pre", "") or "default"
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"cannot read the tokenizer of {keys.path}: its pre-tokenizer is {name!r}; known are "
            f"{', '.join(PRE_TOKENIZERS)}, so choose such a model, or convert it again"
        )
    return PRE_TOKENIZERS[name]


@cache
def compiled(patterns: tuple[str, ...]) -> Sequence[Any]:
    """Expressions ready to cut with, in Oniguruma's sense, for which they were written."""
    import regex  # brought in by the first text: few commands have one

    return [regex.compile(each, regex.VERSION1 | regex.MULTILINE) for each in patterns]


def cut(text: str, patterns: Sequence[Any]) -> Iterator[str]:
    """What an expression matches and what lies between, each cut again by the next one."""
    if not patterns:
        yield text
        return
    first, *others = patterns
    begin = 0
    for match in first.finditer(text):
        if match.start() > begin:
            yield from cut(text[begin : match.start()], others)
        yield from cut(match.group(), others)
        begin = match.end()
    if begin < len(text):
        yield from cut(text[begin:], others)


def _merges(keys: Keys) -> list[bytes]:
    merges = keys.values.get("tokenizer.ggml.merges")
    if not isinstance(merges, StringArray):
        raise ModelFileError(
            f"cannot read the tokenizer of {keys.path}: it has no tokenizer.ggml.merges; "
            "convert the model again"
        )
    texts = merges.all_raw()
    for index, text in enumerate(texts):
        if b" " not in text:
            raise ModelFileError(
                f"cannot read the tokenizer of {keys.path}: merge {index} is {text[:40]!r}, not "
                "two tokens; convert the model again"
            )
    return texts


def _byte_table() -> dict[str, bytes]:
    """GPT-2's printable stand-ins: the character that each byte is written as."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): bytes([byte]) for byte in printable}
    return table | {chr(256 + index): bytes([byte]) for index, byte in enumerate(hidden)}


BYTES_OF = _byte_table()
STAND_INS = {ord(byte): character for character, byte in BYTES_OF.items()}
