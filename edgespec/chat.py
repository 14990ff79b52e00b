"""Conversations: turns in, replies out, and only what is new is prefilled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from edgespec.errors import TemplateError
from edgespec.reply import Reply, Request

if TYPE_CHECKING:
    from edgespec.engine import Engine, ReplyStream


class Chat:
    """One conversation; a context manager.

    A reply that is interrupted stays in the conversation as far as it was written.
    """

    def __init__(self, engine: Engine, system: str | None = None) -> None:
        template = engine.file.chat_template
        if template is None:
            raise TemplateError(
                f"{engine.file.path.name} has no chat template, so it cannot hold a conversation; "
                "use `edgespec run --raw` or engine.generate(..., raw=True) to continue a text"
            )
        self._engine = engine
        self._template = template
        self.messages: list[dict[str, str]] = []
        """Turns so far: {"role": ..., "content": ...}."""
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self._text = ""
        self._ids: list[int] = []

    def send(self, text: str, **options: Any) -> Reply:
        """Add a turn and return the whole reply; options as for `Engine.generate`."""
        stream = self.stream(text, **options)
        for _ in stream:
            pass
        return stream.reply

    def stream(self, text: str, **options: Any) -> ChatStream:
        """Add a turn and yield the reply piece by piece; options as for `Engine.stream`."""
        turns = [*self.messages, {"role": "user", "content": text}]
        shield = self._engine.tokenizer.shield
        shielded = [{**turn, "content": shield(turn["content"])} for turn in turns]
        rendered = self._template.render(shielded)
        ids = self._encode(rendered)
        stream = self._engine.stream(ids, **options)
        return ChatStream(self, turns, rendered, stream)

    def _encode(self, rendered: str) -> list[int]:
        """Token ids of the conversation: what the model wrote keeps the ids it wrote."""
        tokenizer = self._engine.tokenizer
        if self._text and rendered.startswith(self._text):
            rest = rendered[len(self._text) :]
            return [*self._ids, *tokenizer.encode(rest, add_bos=False, parse_special=True)]
        ids: list[int] = tokenizer.encode(rendered, parse_special=True)
        return ids

    def remember(
        self, turns: list[dict[str, str]], rendered: str, request: Request, reply: Reply
    ) -> None:
        """Take a finished (or interrupted) reply into the conversation."""
        self.messages = [*turns, {"role": "assistant", "content": reply.text}]
        self._text = rendered + self._engine.tokenizer.shield(reply.text)
        self._ids = [*request.prompt_ids, *reply.token_ids]

    def reset(self) -> None:
        """Forget all turns but the system message."""
        self.messages = [turn for turn in self.messages if turn["role"] == "system"]
        self._text, self._ids = "", []

    def close(self) -> None:
        """End the conversation; the engine stays open."""
        self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ChatStream:
    """An iterator over the pieces of a reply in a conversation; `reply` is the whole afterwards."""

    def __init__(
        self, chat: Chat, turns: list[dict[str, str]], rendered: str, stream: ReplyStream
    ) -> None:
        self._stream = stream
        self._pieces = _remembering(stream, chat, turns, rendered)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop writing; what was written stays in the conversation."""
        self._pieces.close()  # type: ignore[attr-defined]

    @property
    def reply(self) -> Reply:
        return self._stream.reply


def _remembering(
    stream: ReplyStream, chat: Chat, turns: list[dict[str, str]], rendered: str
) -> Iterator[str]:
    """The pieces of a reply, which becomes a turn however it ends."""
    try:
        yield from stream
    finally:
        stream.close()
        if stream.started:
            chat.remember(turns, rendered, stream.request, stream.reply)
