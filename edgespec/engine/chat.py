"""Conversations: turns in, replies out, and only what is new is prefilled."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, Unpack

from edgespec.engine import prompts
from edgespec.engine.context import NUM_SINKS, Overflow, Sliding, policy
from edgespec.engine.generation import Generation
from edgespec.engine.reply import Reply
from edgespec.engine.reply_options import ReplyKeywords, ReplyOptions
from edgespec.engine.reply_stream import Stream, Then
from edgespec.errors import EdgeSpecError, OptionError, TemplateError
from edgespec.models.file import ModelFile
from edgespec.system.option_fields import made, spells

Write = Callable[[Sequence[int], Overflow, Hashable, ReplyOptions, Then], Stream]
"""Begins a reply to token ids, in the sequence of an owner."""


class Chat:
    """One conversation; a context manager.

    Its keys and values stay with the engine while others talk, until it is closed.
    A reply that is interrupted stays in the conversation as far as it was written.
    """

    def __init__(
        self,
        file: ModelFile,
        write: Write,
        forget: Callable[[Hashable], None],
        system: str | None = None,
        prefix: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Made by `Engine.chat`: `write` and `forget` are the engine's, `prefix` names the saved
        prefix that holds the system message, `tools` are functions that the model may call.
        """
        template = file.chat_template
        if template is None:
            raise TemplateError(
                f"{file.path.name} has no chat template, so it cannot hold a conversation; "
                "use `edgespec run --raw` or engine.generate(..., raw=True) to continue a text"
            )
        self._tokenizer = file.tokenizer
        self._write, self._forget = write, forget
        self._template = template
        self.messages: list[dict[str, str]] = []
        """Turns so far: {"role": ..., "content": ...}, and "reasoning_content" where there was any,
        which templates leave out of what the model reads again, but where it helps.
        """
        self._tools = tools
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self._text = ""
        self._ids: list[int] = []
        self._prefix = prefix
        self._last: weakref.ref[Stream] | None = None
        self._owner = object()
        """Stands for this conversation with the engine, which must not keep it alive."""
        self._end = weakref.finalize(self, forget, self._owner)
        self._end.atexit = False

    @spells(ReplyOptions)
    def send(self, text: str, **options: Unpack[ReplyKeywords]) -> Reply:
        """Add a turn and return the whole reply."""
        stream = self._stream(text, made(ReplyOptions, "send", options))
        for _ in stream:
            pass
        return stream.reply

    @spells(ReplyOptions)
    def stream(self, text: str, **options: Unpack[ReplyKeywords]) -> Stream:
        """Add a turn and yield the reply piece by piece.

        When the context is full, `on_overflow` "drop-turns" drops the oldest turns whole, and
        "sliding" keeps the system message (or the first tokens) and the latest tokens.
        """
        return self._stream(text, made(ReplyOptions, "stream", options))

    def _stream(self, text: str, options: ReplyOptions) -> Stream:
        if not isinstance(text, str):
            raise OptionError(f"a message is a text, and {text!r} is none")
        last = None if self._last is None else self._last()
        if last is not None and last.started and last.generation.stats is None:
            raise EdgeSpecError(
                "the last reply of this conversation is still being written; finish or close that "
                "stream"
            )
        if last is not None:
            last.close()  # so that it is remembered, though it was not read to its end
        turns = [*self.messages, {"role": "user", "content": text}]
        thinking = options.thinking
        rendered = Rendered(turns, self.render(turns, thinking=thinking), thinking)
        ids = self._encode(rendered.text)
        overflow = self._policy(options.on_overflow, rendered)
        options = replace(options, prefix=options.prefix or self._prefix)

        def then(generation: Generation) -> None:
            if generation.began:
                self.remember(rendered, generation)

        stream = self._write(ids, overflow, self._owner, options, then)
        self._last = weakref.ref(stream)
        return stream

    def render(
        self,
        turns: Sequence[Mapping[str, str]],
        *,
        reply_next: bool = True,
        thinking: bool | None = None,
    ) -> str:
        """The turns as the model's template writes them; texts cannot pretend to be its marks."""
        return self._template.render(
            prompts.shielded(turns, self._tokenizer.shield),
            add_generation_prompt=reply_next,
            tools=self._tools,
            thinking=thinking,
        )

    def encode(self, rendered: str) -> list[int]:
        """Token ids of rendered turns."""
        ids: list[int] = self._tokenizer.encode(rendered, parse_special=True)
        return ids

    def _policy(self, name: str, rendered: Rendered) -> Overflow:
        if name == "drop-turns":
            return DropTurns(self, rendered)
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
            tokenizer = self._tokenizer
            return [*self._ids, *tokenizer.encode(rest, add_bos=False, parse_special=True)]
        return self.encode(rendered)

    def remember(self, rendered: Rendered, generation: Generation) -> None:
        """Take a finished (or interrupted) reply into the conversation: its answer, and its
        reasoning for templates that want it. What is no longer as the model wrote it is encoded
        anew.
        """
        reply = generation.reply
        turn = {"role": "assistant", "content": reply.text}
        if reply.reasoning:
            turn["reasoning_content"] = reply.reasoning
        self.messages = [*rendered.turns, turn]
        self._text, self._ids = "", []
        if generation.untouched:
            self._text = rendered.text + self._tokenizer.shield(reply.text)
            self._ids = list(generation.seen_ids)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation to a JSON file, which `Engine.load_chat` goes on with; raises
        OSError.
        """
        kept = {
            "edgespec_chat": 1,
            "messages": self.messages,
            "tools": self._tools,
            "tokenizer": self._tokenizer.fingerprint.hex(),
            "text": self._text,
            "ids": self._ids,
        }
        text = json.dumps(kept, ensure_ascii=False, indent=1)
        unfinished = Path(f"{os.fspath(path)}.part")
        unfinished.write_text(text, encoding="utf-8", errors="surrogatepass")
        unfinished.replace(path)

    def restore(self, saved: SavedChat) -> None:
        """Go on where a saved conversation stood: with the tokens it had, if they mean the same."""
        self.messages = saved.messages
        if saved.tokenizer == self._tokenizer.fingerprint.hex():
            self._text, self._ids = saved.text, saved.ids

    def reset(self) -> None:
        """Forget all turns but the system message."""
        self.messages = [turn for turn in self.messages if turn["role"] == "system"]
        self._text, self._ids = "", []

    def close(self) -> None:
        """End the conversation and give its memory back; the engine stays open."""
        self.reset()
        self._forget(self._owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class Rendered:
    """The turns before a reply, and how the template writes them."""

    turns: list[dict[str, str]]
    text: str
    thinking: bool | None = None


class DropTurns:
    """Drops the oldest turns whole, each with its reply, until a quarter of the context is free.

    The system message and the last turn stay. What is left is encoded anew, so a reply goes on
    after a conversation that never had those turns.
    """

    def __init__(self, chat: Chat, rendered: Rendered) -> None:
        self.dropped_turns = 0
        self.dropped_tokens = 0
        self._chat = chat
        self._rendered = rendered

    def shorten(self, prompt: Sequence[int], reply: Sequence[int], room: int) -> list[int] | None:
        """The turns that stay, and the reply so far; None when the last turn alone is too long."""
        turns, thinking = self._rendered.turns, self._rendered.thinking
        kept = [*prompt, *reply]
        num_dropped = 0
        while len(kept) > room - room // 4:
            shorter = _without_oldest(turns)
            if shorter is None:
                break
            turns = shorter
            kept = [*self._chat.encode(self._chat.render(turns, thinking=thinking)), *reply]
            num_dropped += 1
        if not num_dropped or len(kept) > room:
            return None
        self.dropped_turns += num_dropped
        self.dropped_tokens += max(0, len(prompt) + len(reply) - len(kept))
        text = self._chat.render(turns, thinking=thinking)
        self._rendered.turns, self._rendered.text = turns, text
        return kept


def _without_oldest(turns: list[dict[str, str]]) -> list[dict[str, str]] | None:
    """The turns without the oldest user's and what answered it; None when it is the last."""
    users = [place for place, turn in enumerate(turns) if turn["role"] == "user"]
    return [*turns[: users[0]], *turns[users[1] :]] if len(users) > 1 else None


@dataclass(frozen=True, slots=True)
class SavedChat:
    """What `Chat.save` wrote."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    tokenizer: str
    text: str
    ids: list[int]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Raises OptionError for another file."""
        try:
            text = Path(path).read_text("utf-8", errors="surrogatepass")
            kept = json.loads(text)
            found = cls(*(kept[field.name] for field in fields(cls)))
            turns = isinstance(found.messages, list) and all(
                isinstance(one["role"], str) for one in found.messages
            )
            ids = isinstance(found.ids, list) and all(isinstance(one, int) for one in found.ids)
            if kept["edgespec_chat"] != 1 or not (turns and ids and isinstance(found.text, str)):
                raise ValueError
        except OSError as error:
            raise OptionError(f"cannot go on with {os.fspath(path)}: {error}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise OptionError(
                f"cannot go on with {os.fspath(path)}: it is no saved conversation"
            ) from None
        return found
