"""A GGUF file's tokenizer in Hugging Face's format: `tokenizer.json`.

Source: the files that the `tokenizers` library writes itself; SentencePiece vocabularies become
merges as Hugging Face's converter makes them, the likeliest piece first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from edgespec.models.file import ModelFile
from edgespec.models.gguf.keys import Keys
from edgespec.models.gguf.strings import StringArray
from edgespec.models.tokenizers.bpe import pre_tokenizer
from edgespec.models.tokenizers.build_tokenizer import check_kind
from edgespec.models.tokenizers.vocabulary import TokenKind, Vocabulary

_SPACE = "▁"


def tokenizer_json(file: ModelFile) -> dict[str, Any]:
    """The whole description."""
    vocabulary = file.tokenizer.vocabulary
    texts = [text.decode("utf-8", "replace") for text in vocabulary.texts()]
    kinds = vocabulary.kinds.tolist()
    bos = file.tokenizer.bos_id if file.tokenizer.add_bos else None
    parts = _parts(vocabulary)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(_added(texts, kinds)),
        "post_processor": None if bos is None else _begins_with(texts[bos], bos),
        **parts(vocabulary, texts, kinds),
    }


def _parts(vocabulary: Vocabulary) -> Callable[[Vocabulary, list[str], list[int]], dict[str, Any]]:
    if check_kind(vocabulary.keys) == "llama":
        return _sentencepiece
    return _lines if pre_tokenizer(vocabulary.keys).whole_lines else _byte_level


def _added(texts: list[str], kinds: list[int]) -> Iterator[dict[str, Any]]:
    for token, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        if text and kind in (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED):
            yield {
                "id": token,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind != TokenKind.USER_DEFINED,
            }


def _begins_with(text: str, token: int) -> dict[str, Any]:
    """A text's first token, and that of a pair of texts."""
    special = {"SpecialToken": {"id": text, "type_id": 0}}
    one, two = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [special, one],
        "pair": [special, one, special, two],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]}},
    }


def _byte_level(vocabulary: Vocabulary, texts: list[str], kinds: list[int]) -> dict[str, Any]:
    keys = vocabulary.keys
    pre, ids = pre_tokenizer(keys), _ids(texts)
    in_threes = {
        "numbers": (r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",),
        "digits": (r"\p{N}+", "[0-9]{3}(?=(?:[0-9]{3})*(?![0-9]))"),
    }
    splits = [_split(pattern) for pattern in (*in_threes.get(pre.thousands, ()), *pre.patterns)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    splits.append({**level, "use_regex": False})
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "decoder": {**level, "use_regex": True},
        "model": _bpe(ids, _merges(keys, ids, texts, kinds), ignore_merges=pre.ignore_merges),
    }


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip


def _merges(keys: Keys, ids: Mapping[str, int], texts: list[str], kinds: list[int]) -> list[str]:
    """The file's own, of tokens that text may become."""
    merges = keys.values.get("tokenizer.ggml.merges")
    pairs = [text.split(" ", 1) for text in merges] if isinstance(merges, StringArray) else []
    hidden = {text for text, kind in zip(texts, kinds, strict=True) if kind == TokenKind.CONTROL}
    return [f"{a} {b}" for a, b in pairs if {a, b, a + b} <= ids.keys() and a + b not in hidden]


def _lines(vocabulary: Vocabulary, texts: list[str], kinds: list[int]) -> dict[str, Any]:
    """SentencePiece's spelling with the file's own merges."""
    ids = _ids(texts)
    merges = _merges(vocabulary.keys, ids, texts, kinds)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    return {
        "normalizer": replace,
        "pre_tokenizer": _split(r"\n+"),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": _bpe(ids, merges, byte_fallback=True, fuse_unk=True),
    }


def _sentencepiece(vocabulary: Vocabulary, texts: list[str], kinds: list[int]) -> dict[str, Any]:
    pieces = {
        text: token
        for token, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        if kind in (TokenKind.NORMAL, TokenKind.USER_DEFINED)
    }
    scores = vocabulary.scores()
    merges = []
    for token in np.argsort(-scores, kind="stable").tolist():
        text = texts[token]
        if pieces.get(text) == token:
            merges += [
                f"{text[:cut]} {text[cut:]}"
                for cut in range(1, len(text))
                if text[:cut] in pieces and text[cut:] in pieces
            ]
    prefix = vocabulary.keys.flag("tokenizer.ggml.add_space_prefix", True)
    space = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    normalizers = [*([{"type": "Prepend", "prepend": _SPACE}] if prefix else []), space]
    unknown = vocabulary.unknown_id
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
            ],
        },
        "model": _bpe(
            _ids(texts),
            merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else texts[unknown],
        ),
    }


def _ids(texts: list[str]) -> dict[str, int]:
    """Of a text that is there twice, the first counts."""
    return {text: token for token, text in reversed(list(enumerate(texts)))}


def _bpe(ids: Mapping[str, int], merges: list[str], **settings: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **settings,
        "vocab": dict(sorted(ids.items(), key=lambda pair: pair[1])),
        "merges": merges,
    }
