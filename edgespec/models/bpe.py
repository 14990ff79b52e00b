"""Byte-level BPE tokenizing, with Hugging Face's `tokenizers` doing the merges.

Source: "Language Models are Unsupervised Multitask Learners", section 2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.keys import Keys
from edgespec.models.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from edgespec.models.strings import StringArray
from edgespec.models.tokenizer import Tokenizer
from edgespec.models.vocabulary import TokenKind, Vocabulary

if TYPE_CHECKING:
    import tokenizers


class BpeTokenizer(Tokenizer):
    """The `gpt2` tokenizer of GGUF files."""

    def __init__(self, keys: Keys) -> None:
        """Build from the metadata of an open file; raises ModelFileError, UnsupportedModelError."""
        pre = _pre_tokenizer(keys)
        vocabulary = Vocabulary(keys, default_bos=None, default_eos=None)
        super().__init__(vocabulary, add_bos=pre.add_bos)
        self._engine = _build_engine(vocabulary, pre)

    def token_bytes(self, token_id: int) -> bytes:
        text = self._vocabulary.text(token_id)
        kind = self._vocabulary.kinds[token_id]
        if kind == TokenKind.NORMAL:
            return b"".join(
                _BYTES.get(character) or character.encode()
                for character in text.decode("utf-8", "replace")
            )
        return text if kind == TokenKind.USER_DEFINED else b""

    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        return ids


def _pre_tokenizer(keys: Keys) -> PreTokenizer:
    name = keys.text("tokenizer.ggml.pre", "")
    if name not in PRE_TOKENIZERS:
        found = f"its pre-tokenizer is {name!r}" if name else "it names no pre-tokenizer"
        raise UnsupportedModelError(
            f"cannot read the tokenizer of {keys.path}: {found}; known are "
            f"{', '.join(PRE_TOKENIZERS)}, so choose such a model, or convert it again"
        )
    return PRE_TOKENIZERS[name]


def _build_engine(vocabulary: Vocabulary, pre: PreTokenizer) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import Regex, models, pre_tokenizers

    path = vocabulary.keys.path
    # Control tokens stay out, so that no merge and no whole word can spell one.
    hidden = set(vocabulary.ids_of(TokenKind.CONTROL, TokenKind.UNKNOWN))
    ids = {
        text.decode("utf-8", "replace"): token_id
        for token_id, text in enumerate(vocabulary.texts())
        if token_id not in hidden
    }
    merges = _merges(vocabulary)
    if hidden:
        secret = {vocabulary.text(token_id).decode("utf-8", "replace") for token_id in hidden}
        merges = [pair for pair in merges if pair[0] + pair[1] not in secret]
    try:
        model = models.BPE(vocab=ids, merges=merges, ignore_merges=pre.ignore_merges)
    except Exception as error:  # the library raises plain Exception
        raise ModelFileError(
            f"cannot read the tokenizer of {path}: its merges do not fit its vocabulary "
            f"({error}); convert the model again"
        ) from None
    engine = tokenizers.Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(text), "isolated") for text in pre.patterns]
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return engine


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    keys = vocabulary.keys
    merges = keys.values.get("tokenizer.ggml.merges")
    if not isinstance(merges, StringArray):
        raise ModelFileError(
            f"cannot read the tokenizer of {keys.path}: it has no tokenizer.ggml.merges; "
            "convert the model again"
        )
    pairs = []
    for index, text in enumerate(merges):
        left, space, right = text.partition(" ")
        if not (left and space and right):
            raise ModelFileError(
                f"cannot read the tokenizer of {keys.path}: merge {index} is {text[:40]!r}, not "
                "two tokens; convert the model again"
            )
        pairs.append((left, right))
    return pairs


def _byte_table() -> dict[str, bytes]:
    """GPT-2's printable stand-ins: the character that each byte is written as."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): bytes([byte]) for byte in printable}
    return table | {chr(256 + index): bytes([byte]) for index, byte in enumerate(hidden)}


_BYTES = _byte_table()
