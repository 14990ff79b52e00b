"""Conversations: turns in, replies out, and only what is new is prefilled."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from edgespec.engine.context import NUM_SINKS, Overflow, Sliding, policy
from edgespec.engine.request import Reply
from edgespec.errors import TemplateError

if TYPE_CHECKING:
    from edgespec.engine.engine import Engine
    from edgespec.engine.reply_stream import ReplyStream


class Chat:
    """One conversation; a context manager.

    Its keys and values stay with the engine while others talk, until it is closed.
    A reply that is interrupted stays in the conversation as far as it was written.
    """

    def __init__(
        self, engine: Engine, system: str | None = None, prefix: str | None = None
    ) -> None:
        """`prefix` names the saved prefix that holds the system message."""
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
        self._prefix = prefix
        self._owner = object()
        """Stands for this conversation with the engine, which must not keep it alive."""
        self._end = weakref.finalize(self, engine.forget, self._owner)
        self._end.atexit = False

    def send(self, text: str, **options: Any) -> Reply:
        """Add a turn and return the whole reply; options as for `Engine.generate`."""
        stream = self.stream(text, **options)
        for _ in stream:
            pass
        return stream.reply

    def stream(
        self, text: str, *, on_overflow: str | Overflow = "stop", **options: Any
    ) -> ChatStream:
        """Add a turn and yield the reply piece by piece; options as for `Engine.stream`.

        When the context is full, `on_overflow` "drop-turns" drops the oldest turns whole, and
        "sliding" keeps the system message (or the first tokens) and the latest tokens.
        """
        turns = [*self.messages, {"role": "user", "content": text}]
        told = Told(turns, self.render(turns))
        ids = self._encode(told.text)
        overflow = self._policy(on_overflow, told)
        options = {"prefix": self._prefix, **options}
        stream = self._engine.stream_for(self._owner, ids, overflow, options)
        return ChatStream(self, told, stream)

    def render(self, turns: Sequence[Mapping[str, str]], *, reply_next: bool = True) -> str:
        """The turns as the model's template writes them; texts cannot pretend to be its marks."""
        shield = self._engine.tokenizer.shield
        shielded = [{**turn, "content": shield(turn["content"])} for turn in turns]
        return self._template.render(shielded, add_generation_prompt=reply_next)

    def encode(self, rendered: str) -> list[int]:
        """Token ids of rendered turns."""
        ids: list[int] = self._engine.tokenizer.encode(rendered, parse_special=True)
        return ids

    def _policy(self, name: str | Overflow, told: Told) -> Overflow:
        if name == "drop-turns":
            return DropTurns(self, told)
        if name == "sliding":
            return Sliding(max(self._num_system_tokens(), NUM_SINKS))
        return policy(name)

    def _num_system_tokens(self) -> int:
        """Tokens of the system message, when the template can write it alone."""
        system = [turn for turn in self.messages if turn["role"] == "system"]
        try:
            return len(self.encode(self.render(system, reply_next=False))) if system else 0
        except TemplateError:
            return 0

    def _encode(self, rendered: str) -> list[int]:
        """Token ids of the conversation: what the model wrote keeps the ids it wrote."""
        if self._text and rendered.startswith(self._text):
            rest = rendered[len(self._text) :]
            tokenizer = self._engine.tokenizer
            return [*self._ids, *tokenizer.encode(rest, add_bos=False, parse_special=True)]
        return self.encode(rendered)

    def remember(self, told: Told, seen_ids: Sequence[int], reply: Reply) -> None:
        """Take a finished (or interrupted) reply into the conversation."""
        self.messages = [*told.turns, {"role": "assistant", "content": reply.text}]
        self._text = told.text + self._engine.tokenizer.shield(reply.text)
        self._ids = list(seen_ids)

    def reset(self) -> None:
        """Forget all turns but the system message."""
        self.messages = [turn for turn in self.messages if turn["role"] == "system"]
        self._text, self._ids = "", []

    def close(self) -> None:
        """End the conversation and give its memory back; the engine stays open."""
        self.reset()
        self._engine.forget(self._owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class Told:
    """The turns before a reply, and how the template writes them."""

    turns: list[dict[str, str]]
    text: str


class DropTurns:
    """Drops the oldest turns whole, each with its reply, until a quarter of the context is free.

    The system message and the last turn stay. What is left is encoded anew, so a reply goes on
    after a conversation that never had those turns.
    """

    def __init__(self, chat: Chat, told: Told) -> None:
        self.dropped_turns = 0
        self.dropped_tokens = 0
        self._chat = chat
        self._told = told

    def shorten(self, prompt: Sequence[int], reply: Sequence[int], room: int) -> list[int] | None:
        """The turns that stay, and the reply so far; None when the last turn alone is too long."""
        turns = self._told.turns
        kept = [*prompt, *reply]
        num_dropped = 0
        while len(kept) > room - room // 4:
            shorter = _without_oldest(turns)
            if shorter is None:
                break
            turns = shorter
            kept = [*self._chat.encode(self._chat.render(turns)), *reply]
            num_dropped += 1
        if not num_dropped or len(kept) > room:
            return None
        self.dropped_turns += num_dropped
        self.dropped_tokens += max(0, len(prompt) + len(reply) - len(kept))
        self._told.turns, self._told.text = turns, self._chat.render(turns)
        return kept


def _without_oldest(turns: list[dict[str, str]]) -> list[dict[str, str]] | None:
    """The turns without the oldest user's and what answered it; None when it is the last."""
    users = [place for place, turn in enumerate(turns) if turn["role"] == "user"]
    return [*turns[: users[0]], *turns[users[1] :]] if len(users) > 1 else None


class ChatStream:
    """An iterator over the pieces of a reply in a conversation; `reply` is the whole afterwards."""

    def __init__(self, chat: Chat, told: Told, stream: ReplyStream) -> None:
        self._stream = stream
        self._pieces = _remembering(stream, chat, told)

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


def _remembering(stream: ReplyStream, chat: Chat, told: Told) -> Iterator[str]:
    """The pieces of a reply, which becomes a turn however it ends."""
    try:
        yield from stream
    finally:
        stream.close()
        if stream.started:
            chat.remember(told, stream.seen_ids, stream.reply)
