"""From what a user types to token ids: in the chat template or as it is, after a saved prefix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.engine.slot import num_common
from edgespec.errors import OptionError
from edgespec.memory.kv import prompt_cache
from edgespec.models.file import ModelFile


def encode(
    file: ModelFile, prompt: str, *, raw: bool, prefix: str | None, thinking: bool | None = None
) -> list[int]:
    """Token ids of a prompt: a user's turn, or the text itself if `raw`; after a saved prefix if
    one is named.
    """
    before = None if prefix is None else prefix_text(file, prefix, raw=raw)
    if is_raw(file, raw=raw):
        return file.tokenizer.encode((before or "") + prompt)
    turns = [] if before is None else [("system", before)]
    return _encode_turns(file, [*turns, ("user", prompt)], thinking)


def check_ids(prompt: Sequence[int], vocab_size: int) -> list[int]:
    """Token ids that a model has; raises OptionError for others."""
    ids = []
    for place, token in enumerate(prompt):
        number = token if isinstance(token, int | np.integer) else -1
        if isinstance(token, bool) or not 0 <= number < vocab_size:
            raise OptionError(
                f"token {place} of the prompt is {str(token)[:40]!r}, and this model's tokens are "
                f"whole numbers from 0 to {vocab_size - 1}"
            )
        ids.append(int(number))
    return ids


def prefix_ids(file: ModelFile, text: str, *, raw: bool) -> list[int]:
    """The tokens that every prompt after a prefix begins with."""
    if is_raw(file, raw=raw):
        return file.tokenizer.encode(text)
    one, other = (_encode_turns(file, [("system", text), ("user", said)]) for said in ("a", "1"))
    return one[: num_common(one, other, len(one))]


def prefix_text(file: ModelFile, name: str, *, raw: bool) -> str:
    """The text of a saved prefix; raises OptionError when it was saved for another use,
    KvFileError when there is none.
    """
    saved = prompt_cache.read(name)
    if saved.raw != is_raw(file, raw=raw):
        how = "the beginning of a text: use it with --raw" if saved.raw else "a system message"
        raise OptionError(f"the prefix {name} was saved as {how}; save it again to change that")
    return saved.text


def is_raw(file: ModelFile, *, raw: bool) -> bool:
    """Whether a prompt is sent as it is."""
    return raw or file.chat_template is None


def _encode_turns(
    file: ModelFile, turns: list[tuple[str, str]], thinking: bool | None = None
) -> list[int]:
    template, shield = file.chat_template, file.tokenizer.shield
    assert template is not None
    messages = [{"role": role, "content": shield(said)} for role, said in turns]
    text = template.render(messages, thinking=thinking)
    return file.tokenizer.encode(text, parse_special=True)
