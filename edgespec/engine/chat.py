"""Conversations: turns in, replies out, and only what is new is prefilled."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, Unpack

from edgespec.engine import prompts
from edgespec.engine.context import NUM_SINKS, Overflow, Sliding, policy
from edgespec.engine.generation import Generation
from edgespec.engine.reply import Reply
from edgespec.engine.reply_options import ReplyKeywords, ReplyOptions
from edgespec.engine.reply_stream import Stream, Then
from edgespec.engine.saved_chat import SavedChat
from edgespec.errors import EdgeSpecError, OptionError, TemplateError
from edgespec.models.file import ModelFile
from edgespec.system.option_fields import made, spells
from edgespec.system.records import dataclass

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
        file.check_chat_template()
        template = file.chat_template
        assert template is not None
        self._tokenizer = file.tokenizer
        self._model = str(file.path)
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
        self._marks: list[tuple[int, int, int]] = []
        """Messages, characters and tokens up to the end of each turn that can be gone back to with
        the tokens it had.
        """
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
        self._settle()
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

    def _settle(self) -> None:
        """Remember the last reply though it may not have been read to its end."""
        last = None if self._last is None else self._last()
        if last is not None and last.started and last.generation.stats is None:
            raise EdgeSpecError(
                "the last reply of this conversation is still being written; finish or close that "
                "stream"
            )
        if last is not None:
            last.close()

    def undo(self) -> str | None:
        """Take the last turn back, with what answered it; returns what the user had said, None
        where there is no turn.

        Keys and values of what is left stay, so that a next turn computes only itself.
        """
        self._settle()
        users = [place for place, turn in enumerate(self.messages) if turn["role"] == "user"]
        if not users:
            return None
        said = self.messages[users[-1]]["content"]
        self.messages = self.messages[: users[-1]]
        self._marks = [mark for mark in self._marks if mark[0] <= users[-1]]
        _, characters, tokens = self._marks[-1] if self._marks else (0, 0, 0)
        self._text, self._ids = self._text[:characters], self._ids[:tokens]
        return said

    @property
    def system(self) -> str | None:
        """The system message."""
        first = self.messages[0] if self.messages else {}
        return first.get("content") if first.get("role") == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        self._settle()
        if self._prefix is not None:
            raise OptionError("the system message of this conversation is a saved prefix's")
        rest = self.messages[self.system is not None :]
        self.messages = rest if text is None else [{"role": "system", "content": text}, *rest]
        self._forget_tokens()

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
        before, known = self._text, self._ids
        if not (before and rendered.text.startswith(before)):
            self._marks.clear()
        self._text, self._ids = "", []
        if generation.untouched:
            self._text = rendered.text + self._tokenizer.shield(reply.text)
            self._ids = list(generation.seen_ids)
            if self._ids[: len(known)] != known:  # a full context dropped some
                self._marks.clear()
            self._marks.append((len(self.messages), len(self._text), len(self._ids)))
        else:
            self._marks.clear()

    def _forget_tokens(self) -> None:
        """All is to be encoded anew."""
        self._text, self._ids = "", []
        self._marks.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation to a JSON file that only its owner reads, whole or not at all;
        `Engine.load_chat` goes on with it. Raises OSError.
        """
        vocabulary = self._tokenizer.fingerprint.hex()
        kept = SavedChat(self.messages, self._tools, self._model, vocabulary, self._text, self._ids)
        kept.write(path)

    def restore(self, saved: SavedChat) -> None:
        """Go on where a saved conversation stood: with the tokens it had, if they say the same to
        this model.
        """
        self._settle()
        self.messages, self._tools = saved.messages, saved.tools
        self._forget_tokens()
        if saved.tokenizer == self._tokenizer.fingerprint.hex() and self._tokenizer.spells(
            saved.ids, saved.text
        ):
            self._text, self._ids = saved.text, [*saved.ids]
            self._marks.append((len(self.messages), len(self._text), len(self._ids)))

    def reset(self) -> None:
        """Forget all turns but the system message."""
        self.messages = [turn for turn in self.messages if turn["role"] == "system"]
        self._forget_tokens()

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
