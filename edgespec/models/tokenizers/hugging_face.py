"""Tokenizers of Hugging Face's format, which lie beside ONNX models as `tokenizer.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.keys import Keys
from edgespec.models.gguf.strings import Texts
from edgespec.models.tokenizers.bpe import BYTES_OF
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.models.tokenizers.vocabulary import TokenKind, Vocabulary

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_MOST_BYTES = 1 << 26
_MOST_VALUES = 1 << 22


class HfTokenizer(Tokenizer):
    """`tokenizer.json`, cut by the `tokenizers` library; special tokens and shields are ours."""

    def __init__(self, keys: Keys, path: Path) -> None:
        """Read the file; `keys` has its facts as `vocabulary_facts` tells them. Raises
        ModelFileError.
        """
        library = hf_library(path)
        try:
            self._library = library.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise _unusable(path, " ".join(str(error).split())) from None
        self._library.encode_special_tokens = True  # they are found before text comes here
        self._library.no_truncation()
        self._library.no_padding()
        vocabulary = Vocabulary(keys, default_bos=None, default_eos=None)
        super().__init__(vocabulary, add_bos=False)
        self._byte_level = keys.flag("tokenizer.hf.byte_level", False)

    def token_bytes(self, token_id: int) -> bytes:
        text = self._vocabulary.text(token_id)
        kind = self._vocabulary.kinds[token_id]
        if kind == TokenKind.USER_DEFINED:
            return text
        if kind == TokenKind.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind != TokenKind.NORMAL:
            return b""
        if not self._byte_level:
            return text.replace(b"\xe2\x96\x81", b" ")
        return b"".join(
            BYTES_OF.get(character) or character.encode()
            for character in text.decode("utf-8", "replace")
        )

    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return ids


def hf_library(path: Path) -> Any:
    """The class of the `tokenizers` package; raises UnsupportedModelError where it is missing."""
    try:
        from tokenizers import Tokenizer as Library
    except ModuleNotFoundError:
        raise UnsupportedModelError(
            f"{path} is read by the package tokenizers, which is not installed: "
            "pip install 'edgespec[onnx]'"
        ) from None
    return Library


def vocabulary_facts(path: Path, num_rows: int) -> dict[str, Any]:
    """What a `tokenizer.json` says, in GGUF's terms, for a model of `num_rows` logits.

    Raises ModelFileError for a file that is no tokenizer, or another model's.
    """
    description = read_json(path)
    model = description.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = description.get("added_tokens") or []
    if isinstance(vocabulary, list):  # Unigram: pairs of a text and a score
        pairs = [pair if isinstance(pair, list) and pair else [None] for pair in vocabulary]
        if any(not isinstance(pair[0], str) for pair in pairs):
            raise _unusable(path, "its vocabulary is not tokens and their scores")
        vocabulary = {pair[0]: place for place, pair in enumerate(pairs)}
    if not isinstance(model, dict) or not isinstance(vocabulary, dict) or not vocabulary:
        raise _unusable(path, "it has no model with a vocabulary")
    try:
        ids = {str(text): int(token) for text, token in vocabulary.items()}
        extra = [(str(a["content"]), int(a["id"]), bool(a.get("special"))) for a in added]
    except (TypeError, KeyError, ValueError, AttributeError):
        raise _unusable(path, "its vocabulary is not tokens and their numbers") from None
    every = [*ids.values(), *(token for _, token, _ in extra)]
    if min(every) < 0 or max(every) >= num_rows or len(ids) * 2 < num_rows:
        raise ModelFileError(
            f"cannot use {path}: it numbers its {len(ids)} tokens up to {max(every)}, and the "
            f"model beside it has logits for {num_rows}; put the model's own tokenizer.json there"
        )
    texts, kinds = [""] * num_rows, np.full(num_rows, TokenKind.UNUSED, np.uint8)
    falls_back = bool(model.get("byte_fallback"))
    for text, token in ids.items():
        is_byte = falls_back and _BYTE.fullmatch(text)
        texts[token], kinds[token] = text, TokenKind.BYTE if is_byte else TokenKind.NORMAL
    for text, token, special in extra:
        texts[token] = text
        kinds[token] = TokenKind.CONTROL if special else TokenKind.USER_DEFINED
    unknown = ids.get(str(model.get("unk_token")))
    if unknown is not None:
        kinds[unknown] = TokenKind.UNKNOWN
    pieces = json.dumps([description.get("pre_tokenizer"), description.get("decoder")])
    return {
        "tokenizer.ggml.model": "tokenizer.json",
        "tokenizer.ggml.tokens": Texts(texts),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.hf.byte_level": '"ByteLevel"' in pieces,
    }


def read_json(path: Path) -> Mapping[str, Any]:
    """An object in a file beside a model; raises ModelFileError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes are too many")
        text = path.read_text(encoding="utf-8")
        if sum(map(text.count, ",[{")) > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES} values are too many")
        values = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(path, " ".join(str(error).split())) from None
    if not isinstance(values, dict):
        raise _unusable(path, "it holds no JSON object")
    return values


def _unusable(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"cannot use {path}: {why[:300]}; download the model's files again")
