"""Fill-in-the-middle prompts: what stands before and after, in the tokens that a model knows.

"Efficient Training of Language Models to Fill in the Middle", in the order prefix, suffix, middle.
"""

from __future__ import annotations

from edgespec.errors import OptionError
from edgespec.models.tokenizers.tokenizer import Tokenizer

_KEYS = (
    ("fim_pre_token_id", "prefix_token_id"),
    ("fim_suf_token_id", "suffix_token_id"),
    ("fim_mid_token_id", "middle_token_id"),
)
"""Of a GGUF file, in its newer and in its older name."""
_TEXTS = (
    ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
    ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
    ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
)


def infill_ids(tokenizer: Tokenizer, prefix: str, suffix: str | None) -> list[int]:
    """Token ids of a prompt for what comes after a prefix, or between it and a suffix.

    Raises OptionError for a suffix where the vocabulary has no tokens for it.
    """
    if suffix is None:
        return tokenizer.encode(prefix)
    marks = _marks(tokenizer)
    if len(marks) < len(_KEYS):
        raise OptionError(
            "this model has no fill-in-the-middle tokens, so it cannot complete before a suffix; "
            "leave the suffix out, or use a model that was trained for it"
        )
    before, after = (tokenizer.encode(text, add_bos=False) for text in (prefix, suffix))
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    return [*bos, marks[0], *before, marks[1], *after, marks[2]]


def _marks(tokenizer: Tokenizer) -> list[int]:
    """The three tokens, fewer where the vocabulary lacks some."""
    vocabulary, found = tokenizer.vocabulary, []
    for keys, texts in zip(_KEYS, _TEXTS, strict=True):
        stated = (vocabulary.keys.values.get(f"tokenizer.ggml.{key}") for key in keys)
        known = [int(one) for one in stated if isinstance(one, int) and 0 <= one < len(vocabulary)]
        if not known:
            wanted = {text.encode() for text in texts}
            known = [token_id for token_id, text in enumerate(vocabulary.texts()) if text in wanted]
        found += known[:1]
    return found
