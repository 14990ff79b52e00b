"""From what a file says of its tokenizer to the tokenizer."""

from __future__ import annotations

from edgespec.errors import UnsupportedModelError
from edgespec.models.gguf.keys import Keys
from edgespec.models.tokenizers.bpe import BpeTokenizer, pre_tokenizer
from edgespec.models.tokenizers.line_bpe import LineBpeTokenizer
from edgespec.models.tokenizers.spm import SpmTokenizer
from edgespec.models.tokenizers.tokenizer import Tokenizer

_NOT_WRITTEN = {
    "t5": "SentencePiece's unigram search",
    "bert": "WordPiece",
    "rwkv": "RWKV's longest match",
    "plamo2": "PLaMo's segmentation table",
    "hybriddna": "DNA k-mers",
    "none": "none at all",
}


def build_tokenizer(keys: Keys) -> Tokenizer:
    """Build the tokenizer a file describes.

    Raises ModelFileError when its parts are missing or disagree, UnsupportedModelError when its
    algorithm is not known here.
    """
    if check_kind(keys) == "llama":
        return SpmTokenizer(keys)
    return LineBpeTokenizer(keys) if pre_tokenizer(keys).whole_lines else BpeTokenizer(keys)


def check_kind(keys: Keys) -> str:
    """The kind of tokenizer a file describes; raises UnsupportedModelError for an unknown one."""
    model = keys.text("tokenizer.ggml.model", "none")
    if model in ("gpt2", "gemma4"):
        pre_tokenizer(keys)
    elif model != "llama":
        part = _NOT_WRITTEN.get(model, "an algorithm not known here")
        raise UnsupportedModelError(
            f"cannot read the tokenizer of {keys.path}: its kind is {model!r} ({part}); supported "
            "are 'llama' (SentencePiece), 'gpt2' and 'gemma4' (BPE), so choose such a model"
        )
    return model
