"""Replies to the lines of a file, each as soon as it ends: here, or on every node of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgespec.engine.context import policy
from edgespec.engine.generation import Generation
from edgespec.errors import ContextOverflowError, EdgeSpecError, OptionError
from edgespec.system.records import dataclass

if TYPE_CHECKING:
    from edgespec.engine.engine import Engine
    from edgespec.engine.reply import Reply
from edgespec.engine.request import Request

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file: what to answer, and how."""

    number: int
    """From 1."""
    prompt: str
    options: dict[str, Any]
    id: Any = None

    @property
    def head(self) -> Answer:
        """What its line of output starts with."""
        return {"line": self.number} | ({} if self.id is None else {"id": self.id})


def answers(
    engine: Engine, lines: Sequence[Line], defaults: Mapping[str, Any]
) -> Iterator[tuple[Line, Answer]]:
    """Lines and their output, in the order in which they end.

    `defaults` are arguments of `Engine.stream` for lines that say nothing else; `on_overflow` is
    the same for all. A prompt that does not fit has an `error` instead of a `text`. Raises
    OptionError, which names the line, before any is answered.
    """
    options = dict(defaults)
    on_overflow = options.pop("on_overflow", "stop")
    asked: list[Request] = []
    places: list[Line] = []
    too_long = []
    for line in lines:
        request = _request(engine, line, options)
        try:
            waiting = Generation(request, policy(on_overflow))
            waiting.fit(engine.plan, engine.file.spec.context_length)
        except ContextOverflowError as error:
            too_long.append((line, line.head | {"error": str(error)}))
            continue
        asked.append(request)
        places.append(line)
    yield from too_long
    stream = engine.stream_batch(asked, on_overflow=on_overflow)
    seen = 0
    try:
        for _ in stream:
            ended = stream.ended
            for index in ended[seen:]:
                line = places[index]
                yield line, line.head | _fields(stream.reply(index))
            seen = len(ended)
    finally:
        stream.close()


def _request(engine: Engine, line: Line, defaults: dict[str, Any]) -> Request:
    try:
        return engine.request(line.prompt, **(defaults | line.options))
    except (EdgeSpecError, TypeError) as error:
        raise OptionError(f"line {line.number}: {error}") from None


def _fields(reply: Reply) -> Answer:
    return {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "seed": reply.stats.seed,
        "prompt_tokens": reply.stats.prompt_tokens,
        "output_tokens": len(reply.token_ids),
        **({"reasoning": reply.reasoning} if reply.reasoning else {}),
        **({"lossy": True} if reply.stats.lossy else {}),
    }
