"""From what a file says of its tokenizer to the tokenizer."""

from __future__ import annotations

from edgespec.errors import UnsupportedModelError
from edgespec.models.gguf.keys import Keys
from edgespec.models.tokenizers.bpe import BpeTokenizer, pre_tokenizer
from edgespec.models.tokenizers.spm import SpmTokenizer
from edgespec.models.tokenizers.tokenizer import Tokenizer


def build_tokenizer(keys: Keys) -> Tokenizer:
    """Build the tokenizer a file describes.

    Raises ModelFileError when its parts are missing or disagree, UnsupportedModelError when its
    algorithm is not known here.
    """
    if check_kind(keys) == "llama":
        return SpmTokenizer(keys)
    return BpeTokenizer(keys)


def check_kind(keys: Keys) -> str:
    """The kind of tokenizer a file describes; raises UnsupportedModelError for an unknown one."""
    model = keys.text("tokenizer.ggml.model", "none")
    if model == "gpt2":
        pre_tokenizer(keys)
    elif model != "llama":
        raise UnsupportedModelError(
            f"cannot read the tokenizer of {keys.path}: its kind is {model!r}; supported are "
            "'llama' (SentencePiece) and 'gpt2' (byte-level BPE), so choose such a model"
        )
    return model
