"""Chat templates from model files: messages in, prompt text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgespec.errors import TemplateError
from edgespec.models.plain_templates import is_plain, plain_prompt

if TYPE_CHECKING:
    from edgespec.models.jinja.program import Program

MAX_SOURCE_CHARACTERS = 1 << 18

_ADVICE = "use --raw to send the prompt without a template, or choose another model file"


class ChatTemplate:
    """Turns messages into the prompt a model was trained on.

    The template is foreign code: an interpreter carries it out that meters its steps, time and
    memory (see `edgespec.models.jinja`). Its dialect is that of Hugging Face's chat templates.
    """

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """Compile `source`; `bos` and `eos` are the texts of those tokens.

        Raises TemplateError when the source is too long or is not a valid template.
        """
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise TemplateError(
                f"cannot compile the chat template: it has {len(source)} characters and at most "
                f"{MAX_SOURCE_CHARACTERS} make sense; {_ADVICE}"
            )
        self.source = source
        self.bos = bos
        self.eos = eos
        if not is_plain(source):
            assert self._program

    @cached_property
    def _program(self) -> Program:
        from edgespec.models.jinja.program import Program  # brings jinja2: few commands need it

        try:
            return Program(self.source)
        except Exception as error:  # foreign code: whatever goes wrong, the template is at fault
            raise _failed("compile", error) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
        **extra: Any,
    ) -> str:
        """The prompt for `messages`, each with `role` and `content`; `extra` reaches the template.

        `tools` are functions as JSON schemas that the model may call. `thinking` asks for thoughts
        or for none, under the two names that templates know it by; None is the template's default.
        Encode it with `parse_special=True`. Raises TemplateError when the template fails, refuses
        the messages, reaches for what is not its own, or exceeds its limits.
        """
        plain = plain_prompt(self.source, messages, add_generation_prompt=add_generation_prompt)
        if plain is not None:
            return plain
        program = self._program
        values = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos,
            "eos_token": self.eos,
            "tools": tools,
            "documents": None,
            **({} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}),
            **extra,
        }
        try:
            return program.run(values)
        except Exception as error:  # as above
            raise _failed("render", error) from None


def _failed(what: str, error: Exception) -> TemplateError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    if len(reason) > 300:
        reason = reason[:300] + "..."
    return TemplateError(f"cannot {what} the chat template of this model: {reason}; {_ADVICE}")
