"""What OpenAI's clients send, checked, and the keywords that the engine takes for it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from edgespec.engine.reply_options import ReplyKeywords
from edgespec.errors import OptionError
from edgespec.models.grammars import sent_schema
from edgespec.server.tool_calls import call_schema

MAX_CHOICES = 32


class Asked(BaseModel):
    """What both kinds of completions take, and what only this server does; the rest is ignored, as
    OpenAI's own servers do with fields that a model does not have.
    """

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    user: str | None = None

    speculation: bool | Literal["on", "off"] | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    repetition_penalty: float | None = None
    repetition_window: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    regex: str | None = None
    grammar: str | None = None
    origins: bool | None = None
    ignore_eos: bool | None = None
    on_overflow: Literal["stop", "sliding"] | None = None

    @field_validator("seed")
    @classmethod
    def _any_seed(cls, seed: int | None) -> int | None:
        """Clients send negative ones too."""
        return None if seed is None else seed % 2**64

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with the usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    def keywords(self) -> ReplyKeywords:
        """The engine's options, those that were sent."""
        found: Any = {
            name: getattr(self, name)
            for name in ReplyKeywords.__annotations__
            if name in type(self).model_fields and getattr(self, name) is not None
        }
        if self.speculation is not None:
            found["speculation"] = self.speculation in (True, "on")
        found.pop("logprobs", None)  # the two kinds mean different things by it
        known: ReplyKeywords = found
        return known


class ChatAsked(Asked):
    """`/v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking: bool | None = None

    def keywords(self) -> ReplyKeywords:
        found = super().keywords()
        if self.max_completion_tokens is not None:
            found["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            found["logprobs"] = self.top_logprobs or 0
        if self.thinking is None:
            asked = (self.chat_template_kwargs or {}).get("enable_thinking")
            if isinstance(asked, bool):
                found["thinking"] = asked
            elif self.reasoning_effort == "none":
                found["thinking"] = False
        schema = self._schema()
        if schema is not None:
            found["schema"] = schema
        return found

    def _schema(self) -> Any:
        """What the format, or a tool that must be called, makes of the reply."""
        form = self.response_format or {"type": "text"}
        kind = form.get("type")
        if kind == "json_schema":
            inner = form.get("json_schema")
            schema = inner.get("schema") if isinstance(inner, dict) else None
            if not isinstance(schema, dict):
                raise OptionError("response_format.json_schema has no schema; give one")
            return schema
        if kind == "json_object":
            return sent_schema(form.get("schema") or {"type": "object"})
        if kind != "text":
            raise OptionError(
                f"response_format is {kind!r}, and can be text, json_object or json_schema"
            )
        tools = self.usable_tools()
        if not tools or self.tool_choice in (None, "auto", "none"):
            return None
        named = self.tool_choice if isinstance(self.tool_choice, dict) else {}
        return call_schema(tools, named.get("function", {}).get("name"))

    def usable_tools(self) -> list[dict[str, Any]] | None:
        """The functions that the model may call."""
        return None if self.tool_choice == "none" else self.tools or None

    def turns(self) -> list[dict[str, Any]]:
        """The messages with their contents as plain texts."""
        return [_turn(message) for message in self.messages]


class CompletionAsked(Asked):
    """`/v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=100)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def keywords(self) -> ReplyKeywords:
        found = super().keywords()
        found["raw"] = True
        if self.logprobs is not None:
            found["logprobs"] = self.logprobs
        found.setdefault("max_tokens", 16)  # OpenAI's default
        return found

    def prompts(self) -> list[str | list[int]]:
        """Each prompt; raises OptionError for what is not done here."""
        for name in ("echo", "suffix"):
            if getattr(self, name):
                raise OptionError(f"{name} is not supported; leave it out")
        if self.best_of not in (None, 1, self.n):
            raise OptionError("best_of is not supported beyond n; leave it out")
        prompt: Any = self.prompt
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            return [prompt]
        if not prompt or len(prompt) > MAX_CHOICES:
            raise OptionError(f"a request takes 1 to {MAX_CHOICES} prompts, not {len(prompt)}")
        return list(prompt)


class EmbeddingAsked(BaseModel):
    """`/v1/embeddings`."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    pooling: Literal["mean", "last"] = "mean"


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its text parts joined; raises OptionError for a part that is no text."""
    content = message.get("content")
    if isinstance(content, list):
        texts = []
        for part in content:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, dict) else part
                raise OptionError(f"a message has a part {kind!r}, and this model reads text alone")
            texts.append(part["text"])
        content = "".join(texts)
    role = "system" if message.get("role") == "developer" else message.get("role")
    return {**message, "role": role, "content": content or ""}
