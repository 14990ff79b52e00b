"""Chat templates that are known word for word, written out without Jinja.

Importing Jinja and reading a template takes as long as a short reply. What is not as plain as a
list of messages with a role and a text is left to the template itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MOST_CHARACTERS = 1 << 16
"""Longer conversations are for the interpreter, which knows how long they may be."""
_CHATML = """\
{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def _chatml(turns: Sequence[tuple[str, str]], add_generation_prompt: bool) -> str:
    said = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns]
    return "".join([*said, "<|im_start|>assistant\n" if add_generation_prompt else ""])


_WRITERS: dict[str, Callable[[Sequence[tuple[str, str]], bool], str]] = {_CHATML: _chatml}


def is_plain(source: str) -> bool:
    """Whether a template is one of those that are known."""
    return source in _WRITERS


def plain_prompt(
    source: str, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
) -> str | None:
    """What a known template writes; None where the template has to be asked."""
    writer = _WRITERS.get(source)
    turns = [(one.get("role"), one.get("content")) for one in messages]
    texts = [part for turn in turns for part in turn if type(part) is str]
    if writer is None or len(texts) < 2 * len(turns) or sum(map(len, texts)) > _MOST_CHARACTERS:
        return None
    return writer([*zip(texts[::2], texts[1::2], strict=True)], add_generation_prompt)
