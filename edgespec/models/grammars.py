"""What a reply may look like: JSON schemas, regular expressions and grammars, as llguidance reads
them.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.errors import BudgetError, OptionError
from edgespec.models.names import names_pattern
from edgespec.system.size import format_size

if TYPE_CHECKING:
    import llguidance

    from edgespec.models.tokenizers.tokenizer import Tokenizer

BYTES_PER_TOKEN = 600
"""More than llguidance keeps of a vocabulary: of 128,000 random tokens 64 MiB were measured."""
MAX_SOURCE_CHARACTERS = 1 << 20
_SPECIAL = b"\xff"
"""What llguidance wants before tokens that are no text."""
_STYLE: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
"""One way to put blanks into JSON: it leaves more of the text without a choice, and keeps models
from writing blanks for ever. `oneOf` is read as `anyOf`, as everywhere where tokens are masked. A
schema's "x-guidance" may say otherwise.
"""
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""Those of JSON schema that bind a text; any other is a comment, as the standard has it."""
_VALUES = ("const", "enum", "default", "examples")
"""Keys of a schema below which there are values, not schemas."""
MOST_KEPT = 4
"""Grammars that are kept for the next reply, with what was found out about them."""


def grammar_of(
    schema: Any, regex: str | None, grammar: str | None, names: Sequence[str] | None = None
) -> str | None:
    """The one of four that was given, in llguidance's own form; None when none was.

    A schema is a dictionary, JSON text, the path of a file of it, or a class with pydantic's
    `model_json_schema`; `grammar` is in Lark's notation. Raises OptionError for what cannot be
    read, and where llguidance is not installed.
    """
    given = [value for value in (schema, regex, grammar, names) if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise OptionError("give one of schema, regex, grammar and names, not several")
    if importlib.util.find_spec("llguidance") is None:
        raise OptionError(
            "schema, regex, grammar and names need llguidance: pip install edgespec[schema]"
        )
    from llguidance import LLMatcher

    if names is not None:
        regex = names_pattern(names)
    if regex is not None:
        return _checked(LLMatcher.grammar_from_regex(regex), regex)
    if grammar is not None:
        return _checked(LLMatcher.grammar_from_lark(grammar), grammar)
    try:
        text = json.dumps(_known_formats(_schema(schema)))
        return _checked(LLMatcher.grammar_from_json_schema(text, defaults=_STYLE), text)
    except (ValueError, TypeError, RecursionError) as error:
        raise OptionError(f"the schema cannot be used: {error}") from None


def sent_schema(given: Any) -> Any:
    """A schema that somebody sent: an object, or its text; raises OptionError for any other text,
    which would be the path of a file of ours.
    """
    if isinstance(given, Mapping) or (isinstance(given, str) and _is_text(given)):
        return given
    raise OptionError("a schema that is sent is an object, or its JSON text")


def matcher_of(tokenizer: Tokenizer, grammar: str) -> llguidance.LLMatcher:
    """What follows one reply through a grammar; raises OptionError for one that cannot be read."""
    return _vocabulary(tokenizer).matcher(grammar)


def longest_tokens(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """A text in tokens, each as long as any that the rest begins with."""
    tokens: list[int] = _vocabulary(tokenizer).tokens.greedy_tokenize(text.decode(errors="ignore"))
    return tokens


def prepare(tokenizer: Tokenizer, room_bytes: int) -> None:
    """Make of a vocabulary what grammars need, once; raises BudgetError where there is no room."""
    needed = BYTES_PER_TOKEN * tokenizer.vocab_size
    if tokenizer not in _vocabularies and needed > room_bytes:
        raise BudgetError(
            f"a schema, regex or grammar needs {format_size(needed)} once for this vocabulary, and "
            f"{format_size(max(room_bytes, 0))} of the budget are left; load with more --memory or "
            "a smaller --context"
        )
    _vocabulary(tokenizer)


def _checked(made: str, source: str) -> str:
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise OptionError(
            f"a schema or grammar of {len(source)} characters is too long; "
            f"{MAX_SOURCE_CHARACTERS} are allowed"
        )
    return made


def _schema(given: Any) -> Any:
    """A JSON schema as plain values."""
    made = getattr(given, "model_json_schema", None)
    if made is not None:
        return made()
    if isinstance(given, Mapping | bool):
        return given
    if not isinstance(given, str):
        raise OptionError(
            f"a schema is a dictionary, JSON text, a file or a pydantic class, not {given!r}"
        )
    try:
        return json.loads(given if _is_text(given) else _read(Path(given)))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"cannot read the schema {given[:80]!r}: {error}") from None


def _is_text(given: str) -> bool:
    return given.lstrip().startswith("{")


def _read(place: Path) -> bytes:
    """A file, but no more of it than a schema may have; raises OSError."""
    with place.open("rb") as file:
        return file.read(MAX_SOURCE_CHARACTERS)


def _known_formats(schema: Any) -> Any:
    """A schema without the formats that nobody knows."""
    if isinstance(schema, list):
        return [_known_formats(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value if key in _VALUES else _known_formats(value)
        for key, value in schema.items()
        if key != "format" or not isinstance(value, str) or value in FORMATS
    }


def _vocabulary(tokenizer: Tokenizer) -> _Vocabulary:
    """A tokenizer as llguidance wants it, made once."""
    found = _vocabularies.get(tokenizer)
    if found is None:
        found = _vocabularies[tokenizer] = _Vocabulary(tokenizer)
    return found


class _Vocabulary:
    """What llguidance keeps of a tokenizer, and the grammars that were used last."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.tokens = LLTokenizer(TokenizerWrapper(_Spelling(tokenizer)))
        self._grammars: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, grammar: str) -> llguidance.LLMatcher:
        """At the beginning of a grammar; copies know what the first has found out."""
        from llguidance import LLMatcher

        with self._lock:
            found = self._grammars.pop(grammar, None)
            if found is None:
                found = LLMatcher(self.tokens, grammar, log_level=0)
            if found.is_error():
                first = found.get_error().strip().splitlines()[0]
                raise OptionError(f"the schema, regex or grammar cannot be used: {first}")
            self._grammars[grammar] = found
            if len(self._grammars) > MOST_KEPT:
                self._grammars.popitem(last=False)
            return found.deep_copy()


_vocabularies: weakref.WeakKeyDictionary[Tokenizer, _Vocabulary] = weakref.WeakKeyDictionary()


class _Spelling:
    """A tokenizer under the names that llguidance asks for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from edgespec.models.tokenizers.vocabulary import TokenKind

        special = set(tokenizer.vocabulary.ids_of(TokenKind.CONTROL)) | set(tokenizer.end_ids)
        self.eos_token_id = end_token(tokenizer)
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = sorted(special)
        self.tokens = [
            _SPECIAL + tokenizer.token_text(token).encode()
            if token in special
            else tokenizer.token_bytes(token)
            for token in range(tokenizer.vocab_size)
        ]
        self._encode = tokenizer.encode

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return self._encode(text, add_bos=False)


def end_token(tokenizer: Tokenizer) -> int:
    """The token that stands for all that end a reply."""
    return tokenizer.eos_id if tokenizer.eos_id is not None else min(tokenizer.end_ids)
