"""From what a user types to token ids: in the chat template or as it is, after a saved prefix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgespec.engine.slot import num_common
from edgespec.errors import ContextOverflowError, OptionError, TemplateError
from edgespec.memory.kv import saved_prefixes
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile

Message = Mapping[str, Any]
"""{"role": ..., "content": ...}, and what else a template reads."""


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


def encode_messages(
    file: ModelFile,
    messages: Sequence[Message],
    tools: Sequence[Message] | None = None,
    thinking: bool | None = None,
) -> list[int]:
    """Token ids of a conversation in the chat template, before the reply to it.

    Raises TemplateError when the model has no template or it refuses the messages, OptionError for
    what is no message.
    """
    if file.chat_template is None:
        raise TemplateError(
            f"{file.path.name} has no chat template, so it takes no messages; give the text as a "
            "prompt"
        )
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise OptionError(
                f"a message is a dictionary with a role and a content, and {message!r} is none"
            )
    shield = file.tokenizer.shield
    text = file.chat_template.render(shielded(messages, shield), tools=tools, thinking=thinking)
    return file.tokenizer.encode(text, parse_special=True)


def shielded(messages: Sequence[Message], shield: Callable[[str], str]) -> list[dict[str, Any]]:
    """Messages whose texts cannot pretend to be the template's marks."""
    return [
        {key: value if key == "role" else _shielded(value, shield) for key, value in one.items()}
        for one in messages
    ]


def _shielded(value: Any, shield: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return shield(value)
    if isinstance(value, Mapping):
        return {key: _shielded(one, shield) for key, one in value.items()}
    return [_shielded(one, shield) for one in value] if isinstance(value, list | tuple) else value


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
    saved = saved_prefixes.read(name)
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


def check_prompt(num_tokens: int, plan: Plan, most: int) -> None:
    """Raise OptionError for an empty prompt, ContextOverflowError for one that does not fit; the
    model takes `most` tokens.
    """
    if not num_tokens:
        raise OptionError("the prompt is empty; type at least one character")
    if num_tokens > plan.context_length - 1:
        raise ContextOverflowError(
            f"the prompt has {num_tokens} tokens and the context holds {plan.context_length}, one "
            "of which the reply needs; shorten the prompt, load with a larger --context (this "
            f"model takes up to {most}), or drop what is oldest with --on-overflow"
        )
