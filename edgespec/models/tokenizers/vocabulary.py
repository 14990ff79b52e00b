"""The token list of a model file, and which of its tokens are more than text."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError
from edgespec.models.gguf.keys import Keys
from edgespec.models.gguf.strings import StringArray

# Texts that end a reply whatever the file says, as llama.cpp's vocabulary loader collects them.
END_TEXTS = frozenset(
    text.encode()
    for text in (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
        "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
        "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<｜end▁of▁sentence｜>", "<turn|>",
        "<|tool_response>", "<|flush|>", "<|calls|>", "[e~[",
    )
)  # fmt: skip
# What ends a reply in most vocabularies and not in those that have the others: there messages end
# within a reply, and `</s>` is HTML.
_NO_ENDS = {
    b"<|end|>": ((b"<|return|>", b"<|call|>"), (b"<|call|>", b"<|flush|>"),
                 (b"<|return|>", b"<|calls|>"), (b"<|calls|>", b"<|flush|>")),
    b"</s>": ((b"<|tool_response>",), (b"<|plamo:eos|>",)),
}  # fmt: skip
# Fill-in-the-middle tokens that end a reply: one of each row, named by key or found by text.
_FILL_ENDS = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}


class TokenKind(enum.IntEnum):
    """`tokenizer.ggml.token_type` of the GGUF specification."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """Token texts (kept as one blob), kinds, and the ids that begin and end a text."""

    def __init__(self, keys: Keys, *, default_bos: int | None, default_eos: int | None) -> None:
        """Read the vocabulary of an open file; raises ModelFileError when it is inconsistent."""
        tokens = keys.values.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, StringArray) or not len(tokens):
            raise ModelFileError(
                f"cannot read the tokenizer of {keys.path}: it has no tokenizer.ggml.tokens; "
                "convert the model again, with its tokenizer files beside it"
            )
        self.keys = keys
        texts = tokens.all_raw()
        self._blob = b"".join(texts)
        self._ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        self.kinds = self._numbers("token_type", TokenKind.NORMAL, "iu").astype(np.uint8)
        self.bos_id = self._id("bos_token_id", default_bos)
        self.eos_id = self._id("eos_token_id", default_eos)
        self.unknown_id = self._id("unknown_token_id", None)
        self.end_ids = self._find_ends(texts)
        # As in llama.cpp, whatever ends a reply is control, even where the file says it is text.
        for token_id in self.end_ids:
            if texts[token_id] in END_TEXTS:
                self.kinds[token_id] = TokenKind.CONTROL

    def __len__(self) -> int:
        return len(self._ends)

    def text(self, token_id: int) -> bytes:
        """The token as the file spells it; raises IndexError for an id out of range."""
        if not 0 <= token_id < len(self._ends):
            raise IndexError(f"token {token_id} of a vocabulary of {len(self._ends)}")
        begin = int(self._ends[token_id - 1]) if token_id else 0
        return self._blob[begin : int(self._ends[token_id])]

    def texts(self) -> list[bytes]:
        """All tokens in order."""
        ends: list[int] = self._ends.tolist()
        return [self._blob[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]

    def fingerprint(self) -> bytes:
        """16 bytes that two vocabularies share only if their tokens are the same, in order."""
        digest = hashlib.blake2b(self._ends.astype("<i8").tobytes(), digest_size=16)
        digest.update(self._blob)
        return digest.digest()

    def scores(self) -> NDArray[np.float32]:
        """`tokenizer.ggml.scores`, zeros when the file has none."""
        return self._numbers("scores", 0, "iuf").astype(np.float32)

    def ids_of(self, *kinds: TokenKind) -> list[int]:
        """Ids of all tokens of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kinds, kinds)).tolist()

    def _numbers(self, key: str, default: int, kinds: str) -> NDArray[np.generic]:
        """A per-token array of one of these NumPy kinds, `default` where the file has none."""
        values = self.keys.values.get(f"tokenizer.ggml.{key}")
        if values is None:
            return np.full(len(self), default)
        if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds:
            found = "something else than an array of numbers"
        elif len(values) < len(self):
            found = f"{len(values)} entries"
        else:
            return values[: len(self)]
        raise ModelFileError(
            f"cannot read the tokenizer of {self.keys.path}: it has {len(self)} tokens and {found} "
            f"in tokenizer.ggml.{key}; convert the model again"
        )

    def _id(self, key: str, default: int | None) -> int | None:
        full = f"tokenizer.ggml.{key}"
        if full not in self.keys.values:
            return default if default is not None and default < len(self) else None
        token_id = self.keys.count(full, least=0)
        if token_id >= len(self):
            raise ModelFileError(
                f"cannot read the tokenizer of {self.keys.path}: {full} is {token_id} and the "
                f"vocabulary has {len(self)} tokens; convert the model again"
            )
        return token_id

    def _find_ends(self, texts: Sequence[bytes]) -> frozenset[int]:
        by_text = {text.encode(): -1 for row in _FILL_ENDS.values() for text in row}
        ends = set()
        for token_id, text in enumerate(texts):
            if text in END_TEXTS:
                ends.add(token_id)
            elif text in by_text:
                by_text[text] = token_id
        stated = [self.eos_id, self._id("eot_token_id", None), self._id("eom_token_id", None)]
        for key, row in _FILL_ENDS.items():
            found = [by_text[text.encode()] for text in row if by_text[text.encode()] >= 0]
            stated.append(self._id(key, found[0] if found else None))
        ends |= {token_id for token_id in stated if token_id is not None}
        there = {texts[token_id] for token_id in ends}
        not_here = {
            text for text, rows in _NO_ENDS.items() if any(there.issuperset(row) for row in rows)
        }
        return frozenset(token_id for token_id in ends if texts[token_id] not in not_here)
