"""Replies to a file of prompts: lines in, lines out in the same order; what is there is kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edgespec.errors import ContextOverflowError, EdgeSpecError, OptionError
from edgespec.terminal.options import LoadOptions, ReplyOptions
from edgespec.terminal.progress import ProgressLine

if TYPE_CHECKING:
    from edgespec.engine import Engine
    from edgespec.reply import Reply, Request

OPTIONS = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed",
    "ignore_eos", "accept", "raw",
)  # fmt: skip
"""What a line may have besides its prompt, and an id that comes back with the reply."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file: what to answer, and how."""

    number: int
    """From 1."""
    prompt: str
    options: dict[str, Any]
    id: Any = None

    @property
    def head(self) -> dict[str, Any]:
        """What its line of output starts with."""
        return {"line": self.number} | ({} if self.id is None else {"id": self.id})


def run_batch(
    path: str, out: str | None, load: LoadOptions, options: ReplyOptions, *, raw: bool
) -> bool:
    """Answer all lines that `out` does not hold yet; False when some could not be answered."""
    options.check()
    lines = read_lines(path)
    with _output(out, lines) as (target, num_done):
        if num_done == len(lines):
            return True
        with ProgressLine() as progress, load.load(progress) as engine:
            defaults = options.as_arguments() | {"raw": raw}
            on_overflow = defaults.pop("on_overflow")  # the same for all lines
            return _answer(engine, lines[num_done:], defaults, on_overflow, target, progress)


def _answer(
    engine: Engine,
    lines: list[Line],
    defaults: dict[str, Any],
    on_overflow: str,
    target: IO[str],
    progress: ProgressLine,
) -> bool:
    """Write a line for each, as soon as it and all before it are there."""
    from edgespec.overflow import policy
    from edgespec.writing import Writing, fit_prompt

    asked: list[Request] = []
    waiting: dict[int, dict[str, Any]] = {}  # place of a line, its output
    places = []  # of each request's line
    for place, line in enumerate(lines):
        request = _request(engine, line, defaults)
        try:
            writing = Writing(request, policy(on_overflow))
            fit_prompt(writing, engine.plan, engine.file.spec.context_length)
        except ContextOverflowError as error:
            waiting[place] = line.head | {"error": str(error)}
            continue
        asked.append(request)
        places.append(place)
    num_failed, written, seen = len(waiting), 0, 0
    stream = engine.stream_batch(asked, on_overflow=on_overflow)
    try:
        for _ in stream:
            ended = stream.ended
            for index in ended[seen:]:
                line = lines[places[index]]
                waiting[places[index]] = line.head | _fields(stream.reply(index))
            if len(ended) > seen:
                seen = len(ended)
                written = _write(waiting, written, target)
                progress("batch", num_failed + seen, len(lines))
        _write(waiting, written, target)
    finally:
        stream.close()
    if num_failed:
        progress.clear()
        print(f"edgespec: {num_failed} of {len(lines)} prompts do not fit", file=sys.stderr)
    return not num_failed


def _request(engine: Engine, line: Line, defaults: dict[str, Any]) -> Request:
    try:
        return engine.request(line.prompt, **(defaults | line.options))
    except (EdgeSpecError, TypeError) as error:
        raise OptionError(f"line {line.number}: {error}") from None


def _fields(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "seed": reply.stats.seed,
        "prompt_tokens": reply.stats.prompt_tokens,
        "output_tokens": len(reply.token_ids),
        **({"lossy": True} if reply.stats.lossy else {}),
    }


def _write(waiting: dict[int, dict[str, Any]], written: int, target: IO[str]) -> int:
    """Write the lines whose turn it is; returns how many are written in all."""
    while written in waiting:
        target.write(json.dumps(waiting.pop(written), ensure_ascii=False) + "\n")
        written += 1
    target.flush()
    return written


def read_lines(path: str) -> list[Line]:
    """All lines of a file, or of standard input for "-"; OptionError names the first bad one."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from None
    return [_line(number, text) for number, text in enumerate(data.splitlines(), 1)]


def _line(number: int, text: bytes) -> Line:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise OptionError(
            f'line {number} is not JSON ({error}); every line is like {{"prompt": "..."}}'
        ) from None
    if not isinstance(values, dict) or not isinstance(values.get("prompt"), str):
        raise OptionError(f'line {number} has no prompt; every line is like {{"prompt": "..."}}')
    unknown = sorted(set(values) - {"prompt", "id", *OPTIONS})
    if unknown:
        raise OptionError(
            f"line {number} has {', '.join(unknown)}, which means nothing; besides prompt and id "
            f"there are {', '.join(OPTIONS)}"
        )
    given = {name: values[name] for name in OPTIONS if name in values}
    return Line(number, values["prompt"], given, values.get("id"))


@contextmanager
def _output(out: str | None, lines: list[Line]) -> Iterator[tuple[IO[str], int]]:
    """Where lines go, and how many are there already; half a line is taken back."""
    if out is None:
        yield sys.stdout, 0
        return
    try:
        with open(out, "a+b") as file:
            file.seek(0)
            whole, num_done = 0, 0
            for text in file:
                if not text.endswith(b"\n"):
                    break
                _check_done(out, text, lines, num_done)
                whole += len(text)
                num_done += 1
            file.truncate(whole)
        target = open(out, "a", encoding="utf-8", newline="\n")  # noqa: SIM115
    except OSError as error:
        raise OptionError(f"cannot write {out}: {error.strerror}") from None
    with target:
        yield target, num_done


def _check_done(out: str, text: bytes, lines: list[Line], num_done: int) -> None:
    """A line that is there must be the output of the line that is at its place now."""
    try:
        values = json.loads(text)
        found = {name: values.get(name) for name in ("line", "id") if name in values}
    except (ValueError, AttributeError):
        found = {}
    if num_done >= len(lines) or found != lines[num_done].head:
        raise OptionError(
            f"line {num_done + 1} of {out} is not the reply to line {num_done + 1} of the prompts; "
            "name another --out, or remove it"
        )
