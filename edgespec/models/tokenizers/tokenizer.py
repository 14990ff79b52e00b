"""Text to token ids and back, from the vocabulary in the model file."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache

from edgespec.errors import OptionError
from edgespec.models.tokenizers.stream import StreamDecoder
from edgespec.models.tokenizers.vocabulary import TokenKind, Vocabulary

_SURROGATES = re.compile("[\ud800-\udfff]")
_MOST_KNOWN = 1024
"""Tokens whose bytes are kept at hand."""
_SHIELD = "\ufdd0"
"""No character (Unicode, section 23.7): `shield` breaks control tokens apart with it."""


class Tokenizer(abc.ABC):
    """What both kinds share: special tokens, the beginning-of-text token, decoding.

    Ids equal llama.cpp's. Control tokens in the text are matched with `parse_special` only, so
    that a user's text cannot forge a turn; user-defined tokens are plain text with an id of their
    own and always match, as in llama.cpp and Hugging Face's tokenizers.
    """

    def __init__(self, vocabulary: Vocabulary, *, add_bos: bool) -> None:
        self._vocabulary = vocabulary
        self._add_bos = vocabulary.keys.flag("tokenizer.ggml.add_bos_token", add_bos)
        self._add_bos &= vocabulary.bos_id is not None

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens themselves."""
        return self._vocabulary

    @property
    def vocab_size(self) -> int:
        return len(self._vocabulary)

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes that say which vocabulary this is."""
        return self._vocabulary.fingerprint()

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        return self._vocabulary.eos_id

    @property
    def end_ids(self) -> frozenset[int]:
        """Every token that ends a reply: end of text, of turn, of message."""
        return self._vocabulary.end_ids

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts the beginning-of-text token first by default."""
        return self._add_bos

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False
    ) -> list[int]:
        """Token ids of `text`; `add_bos=None` does what the file says.

        With `parse_special` control tokens in the text become their ids, and a text that brings
        its own beginning-of-text token does not get a second. Raises OptionError when `add_bos`
        is asked of a vocabulary that has no such token.
        """
        if add_bos and self.bos_id is None:
            raise OptionError(
                f"cannot begin with a beginning-of-text token: {self._vocabulary.keys.path} has "
                "none; leave add_bos out"
            )
        ids: list[int] = []
        after_special = True
        for part in self._partition(_SURROGATES.sub("\ufffd", text), parse_special):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
            else:
                ids += self._encode_text(part.replace(_SHIELD, ""), after_special)
                after_special = False
        wanted = self._add_bos if add_bos is None else add_bos
        if wanted and self.bos_id is not None and not (parse_special and ids[:1] == [self.bos_id]):
            ids.insert(0, self.bos_id)
        return ids

    def shield(self, text: str) -> str:
        """Text whose control tokens stay plain text, even through a chat template.

        For what users write: `encode(..., parse_special=True)` of a rendered template must see the
        template's own control tokens and no forged ones.
        """
        allowed, every = self._specials
        for special, token_id in every:
            if special in text and (special, token_id) not in allowed:
                text = text.replace(special, special[0] + _SHIELD + special[1:])
        return text

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`: their bytes joined, what is not UTF-8 replaced by U+FFFD.

        Nothing is trimmed, so decode(a + b) is decode(a) + decode(b) at character boundaries; a
        SentencePiece text keeps the space its encoding starts with.
        """
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def spells(self, ids: Sequence[int], text: str) -> bool:
        """Whether ids, of any source, are a division of this text, in which control tokens are
        spelled out; spaces and a first beginning-of-text token may be the encoding's own.
        """
        if not all(0 <= one < self.vocab_size for one in ids):
            return False
        parts = (self.token_bytes(one) or self.token_text(one).encode() for one in ids)
        found = b"".join(parts).decode("utf-8", "replace")
        first = "" if self.bos_id is None else self.token_text(self.bos_id)
        plain = _SURROGATES.sub("\ufffd", text.replace(_SHIELD, ""))
        one, other = ("".join(said.removeprefix(first).split()) for said in (found, plain))
        return one == other

    def stream(self) -> StreamDecoder:
        """A decoder for ids that arrive one at a time."""
        return StreamDecoder(self._known_bytes)

    @cached_property
    def _known_bytes(self) -> Callable[[int], bytes]:
        """`token_bytes`, but for tokens that came lately."""
        return lru_cache(_MOST_KNOWN)(self.token_bytes)

    def token_text(self, token_id: int) -> str:
        """The token as the file spells it, control tokens included."""
        return self._vocabulary.text(token_id).decode("utf-8", "replace")

    @abc.abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, none for a control token; raises IndexError."""

    @abc.abstractmethod
    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        """Ids of plain text; `after_special` says that it starts the text or follows a special."""

    @cached_property
    def _specials(self) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """(user-defined tokens, these and control ones) as (text, id), longest first."""
        vocabulary = self._vocabulary
        plain = vocabulary.ids_of(TokenKind.USER_DEFINED)
        every = vocabulary.ids_of(TokenKind.USER_DEFINED, TokenKind.CONTROL, TokenKind.UNKNOWN)
        by_length = sorted(
            (-len(text), token_id, text.decode("utf-8", "replace"))
            for token_id in every
            if (text := vocabulary.text(token_id))
        )
        pairs = [(text, token_id) for _, token_id, text in by_length]
        allowed = set(plain)
        return [pair for pair in pairs if pair[1] in allowed], pairs

    def _partition(self, text: str, parse_special: bool) -> list[str | int]:
        """Split at special tokens, the longest special first wherever it is (as llama.cpp does)."""
        parts: list[str | int] = [text] if text else []
        for special, token_id in self._specials[parse_special]:
            if special in text:
                parts = [piece for part in parts for piece in _split(part, special, token_id)]
        return parts


def _split(part: str | int, special: str, token_id: int) -> Iterable[str | int]:
    if isinstance(part, int):
        yield part
        return
    for index, piece in enumerate(part.split(special)):
        if index:
            yield token_id
        if piece:
            yield piece
