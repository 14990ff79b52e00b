"""Reasoning beside the answer: how a model writes it, and a parser for text that comes in pieces.

Models that reason write their thoughts first, between tags of their own, or as messages of another
channel (gpt-oss: "OpenAI Harmony Response Format"). Which of the two a model does is read from its
chat template, and text of a model that does neither is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from edgespec.models.tokenizers.vocabulary import TokenKind
from edgespec.system.records import dataclass

if TYPE_CHECKING:
    from edgespec.models.tokenizers.tokenizer import Tokenizer

_END_TOKENS = 32
"""Tokens at a prompt's end that may open the thoughts; a tag may be as many as its letters."""
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
_TAGS = (
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
    ("<think>", "</think>"),
)


class Piece(str):
    """Text of a reply as it comes; `reasoning` says whether it belongs to the answer or not."""

    __slots__ = ("reasoning",)
    reasoning: bool

    def __new__(cls, text: str, *, reasoning: bool = False) -> Piece:
        piece = super().__new__(cls, text)
        piece.reasoning = reasoning
        return piece


class Parser(Protocol):
    """Text in, pieces out: the same pieces joined, wherever the text was cut."""

    untouched: bool
    """Whether all text so far became the answer as it was."""

    def push(self, text: str) -> list[Piece]: ...

    def mark(self, text: str) -> list[Piece]:
        """A control token of the model's, which has no text of its own."""

    def flush(self) -> list[Piece]: ...


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """How one model tells its thoughts from its answer."""

    opens: str = ""
    """The tags; "" for channels."""
    closes: str = ""
    marks: tuple[str, ...] = _HARMONY
    """Control tokens that the parser has to see, by their text."""

    def parser(self, prompt_end: str) -> Parser:
        """A parser for a reply to a prompt with this end, which may have opened the thoughts."""
        if not self.opens:
            return HarmonyParser()
        return TagParser(self.opens, self.closes, prompt_end.rstrip().endswith(self.opens))


def style_of(template: str) -> ReasoningStyle | None:
    """The style that a chat template speaks of, None when it speaks of none."""
    if "<|channel|>" in template and "<|message|>" in template:
        return ReasoningStyle()
    for opens, closes in _TAGS:
        if opens in template or closes in template:
            return ReasoningStyle(opens, closes, (opens.removesuffix("thought"), closes))
    return None


def joined(pieces: list[Piece]) -> list[Piece]:
    """The pieces with neighbours of the same kind in one, and without empty ones."""
    found: list[Piece] = []
    for piece in filter(None, pieces):
        if found and found[-1].reasoning == piece.reasoning:
            found[-1] = Piece(found[-1] + piece, reasoning=piece.reasoning)
        else:
            found.append(piece)
    return found


@dataclass(slots=True)
class _Thoughts:
    """Reasoning without the blanks around it: held back until more comes."""

    blanks: str = ""
    begun: bool = False

    def push(self, text: str) -> list[Piece]:
        text = self.blanks + text
        if not self.begun:
            text = text.lstrip()
        kept = text.rstrip()
        self.blanks, self.begun = text[len(kept) :], self.begun or bool(kept)
        return [Piece(kept, reasoning=True)] if kept else []


@dataclass(slots=True)
class TagParser:
    """Thoughts between tags, which only the beginning of a reply may open.

    Tags further down are what the answer is about. Blanks around the thoughts, and between them and
    the answer, belong to neither.
    """

    opens: str
    closes: str
    thinking: bool
    untouched: bool = field(init=False)
    _answering: bool = False
    _held: str = ""
    _blank: bool = False
    """The answer has not begun, and what comes before it is left out."""
    _thoughts: _Thoughts = field(default_factory=_Thoughts)

    def __post_init__(self) -> None:
        self.untouched = not self.thinking

    def push(self, text: str) -> list[Piece]:
        if self._answering:
            return self._answer(text)
        self._held += text
        if not self.thinking and not self._open():
            return self._begin_answer()
        return self._think() if self.thinking else []

    def mark(self, text: str) -> list[Piece]:
        return [] if self._answering else self.push(text)

    def flush(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self.thinking:
            return self._thoughts.push(held)
        return self._answer(held)

    def _open(self) -> bool:
        """Whether the beginning is, or may still become, the opening tag."""
        begin = self._held.lstrip()
        if begin.startswith(self.opens):
            self.thinking, self.untouched = True, False
            self._held = begin[len(self.opens) :]
        return self.thinking or self.opens.startswith(begin)

    def _think(self) -> list[Piece]:
        thought, tag, rest = self._held.partition(self.closes)
        if tag:
            self.thinking, self._blank, self._held = False, True, rest
            return [*self._thoughts.push(thought), *self._begin_answer()]
        keep = _overlap(self._held, self.closes)
        cut = len(self._held) - keep
        thought, self._held = self._held[:cut], self._held[cut:]
        return self._thoughts.push(thought)

    def _begin_answer(self) -> list[Piece]:
        self._answering = True
        held, self._held = self._held, ""
        return self._answer(held)

    def _answer(self, text: str) -> list[Piece]:
        if self._blank:
            text = text.lstrip()
            self._blank = not text
        return [Piece(text)] if text else []


@dataclass(slots=True)
class HarmonyParser:
    """Messages of gpt-oss: `<|channel|>analysis<|message|>...<|end|><|start|>assistant...`.

    The channel "analysis" is reasoning, any other the answer. The prompt ends in a message's head.
    """

    untouched: bool = True
    _head: str | None = ""
    """What stands before `<|message|>`; None within a message."""
    _held: str = ""
    _reasoning: bool = False
    _kinds: set[bool] = field(default_factory=set)
    """The kinds of message that have had text."""
    _between: bool = False
    """A message of a kind that was there before begins: a line end keeps the two apart."""
    _messages: int = 0

    def push(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while True:
            found = [(self._held.find(mark), mark) for mark in _HARMONY]
            place, mark = min(((at, mark) for at, mark in found if at >= 0), default=(-1, ""))
            if place < 0:
                break
            pieces += self._text(self._held[:place])
            self._held = self._held[place + len(mark) :]
            self._take(mark)
        keep = max(_overlap(self._held, mark) for mark in _HARMONY)
        cut = len(self._held) - keep
        pieces += self._text(self._held[:cut])
        self._held = self._held[cut:]
        return pieces

    def mark(self, text: str) -> list[Piece]:
        held, self._held = self._held, ""
        pieces = self._text(held)
        self._take(text)
        return pieces

    def flush(self) -> list[Piece]:
        held, self._held = self._held, ""
        pieces = self._text(held)
        if self._head and not self._messages:  # no message at all: the model wrote plain text
            pieces.append(Piece(self._head))
        self._head = None
        return pieces

    def _take(self, mark: str) -> None:
        self.untouched = False
        if mark == "<|message|>":
            head = self._head or ""
            self._reasoning = "<|channel|>analysis" in head
            self._between = self._reasoning in self._kinds
            self._head, self._messages = None, self._messages + 1
        elif mark == "<|channel|>":
            self._head = (self._head or "") + mark
        else:
            self._head = ""

    def _text(self, text: str) -> list[Piece]:
        if self._head is not None:
            self._head += text
            return []
        if not text:
            return []
        between = "\n" if self._between else ""
        self._kinds.add(self._reasoning)
        self._between = False
        return [Piece(between + text, reasoning=self._reasoning)]


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of a text that may be the beginning of a mark."""
    most = min(len(text), len(mark) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(mark[:size])), 0)


class Reasoning:
    """One model's style, and the tokens that its parser has to see."""

    def __init__(self, style: ReasoningStyle, tokenizer: Tokenizer) -> None:
        self._style, self._tokenizer = style, tokenizer
        controls = tokenizer.vocabulary.ids_of(TokenKind.CONTROL)
        texts = {token: tokenizer.token_text(token) for token in controls}
        self.marks = {token: text for token, text in texts.items() if text in style.marks}
        """Control tokens that are marks, by id."""

    def parser(self, prompt_ids: Sequence[int]) -> Parser:
        """A parser for a reply to these tokens."""
        end = (
            self.marks[token].encode()
            if token in self.marks
            else self._tokenizer.token_bytes(token)
            for token in prompt_ids[-_END_TOKENS:]
        )
        return self._style.parser(b"".join(end).decode("utf-8", "replace"))
