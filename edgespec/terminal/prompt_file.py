"""`edgespec batch`: a file of prompts in, a line for each reply out, in the same order.

Lines that the output holds already are kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from edgespec.engine.reply_options import ReplyOptions
from edgespec.engine.request import check_options
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.models.grammars import sent_schema
from edgespec.system.option_fields import changed, options_of
from edgespec.terminal.opened_engine import opened_engine
from edgespec.terminal.progress import ProgressLine
from edgespec.tools.answer_file import Answer, Line, answers

_OF_ALL = ("speculation", "max_nodes", "on_overflow", "prefix")
OPTIONS = tuple(name for name in options_of(ReplyOptions) if name not in _OF_ALL)
"""What a line may set for its own reply."""


def run_batch(
    path: str,
    out: str | None,
    load: LoadOptions,
    reply: ReplyOptions,
    *,
    ray: str | None = None,
) -> bool:
    """Answer all lines that `out` does not hold yet; False when some could not be answered.

    On the nodes of the Ray cluster at the address `ray`, or here if that is None.
    """
    check_options(reply)
    lines = read_lines(path)
    with _output(out, lines) as (target, num_done):
        left = lines[num_done:]
        if not left:
            return True
        if ray is not None:
            return _write_with_ray(ray, left, load, reply, target)
        with opened_engine(load, reply) as (engine, progress):
            return _write(left, answers(engine, left, changed(reply)), target, progress)


def _write_with_ray(
    ray: str, lines: list[Line], load: LoadOptions, reply: ReplyOptions, target: IO[str]
) -> bool:
    from edgespec.tools.cluster.cluster import cluster_answers

    for line in lines:  # a node could only leave for it
        _check_options(line, reply)
    load = load if reply.speculation else load.without_drafts()
    with ProgressLine() as progress:

        def note(said: str) -> None:
            progress.clear()
            print(f"edgespec: {said}", file=sys.stderr)

        progress("cluster", 0, 1)
        found = cluster_answers(ray, lines, changed(load), changed(reply), note)
        return _write(lines, found, target, progress)


def _check_options(line: Line, reply: ReplyOptions) -> None:
    try:
        check_options(replace(reply, **line.options))
    except (OptionError, TypeError) as error:
        raise OptionError(f"line {line.number}: {error}") from None


def _write(
    lines: list[Line],
    found: Iterable[tuple[Line, Answer]],
    target: IO[str],
    progress: ProgressLine,
) -> bool:
    """Write an output for each line, as soon as it and all before it are there."""
    waiting: dict[int, Answer] = {}
    num_written = num_failed = 0
    for num_found, (line, output) in enumerate(found, 1):
        waiting[line.number] = output
        num_failed += "error" in output
        while num_written < len(lines) and lines[num_written].number in waiting:
            ready = waiting.pop(lines[num_written].number)
            target.write(json.dumps(ready, ensure_ascii=False) + "\n")
            num_written += 1
        target.flush()
        progress("batch", num_found, len(lines))
    if num_failed:
        progress.clear()
        print(f"edgespec: {num_failed} of {len(lines)} prompts were not answered", file=sys.stderr)
    return not num_failed


def read_lines(path: str) -> list[Line]:
    """All lines of a file, or of standard input for "-"; OptionError names the first bad one."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise EdgeSpecError(
            f'cannot read {path} ({error.strerror}); name a file of lines {{"prompt": ...}}, or - '
            "for standard input"
        ) from None
    return [_line(number, text) for number, text in enumerate(data.splitlines(), 1)]


def _line(number: int, text: bytes) -> Line:
    try:
        values = json.loads(text)
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"line {number} has half of a character (\\ud800 to \\udfff); write the whole one"
        ) from None
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f'line {number} is not JSON ({error}); a line looks like {{"prompt": "..."}}'
        ) from None
    if not isinstance(values, dict) or not isinstance(values.get("prompt"), str):
        raise OptionError(f'line {number} has no prompt; a line looks like {{"prompt": "..."}}')
    unknown = sorted(set(values) - {"prompt", "id", *OPTIONS})
    if unknown:
        raise OptionError(
            f"line {number} has unknown fields: {', '.join(unknown)}; besides prompt and id, "
            f"a line may have {', '.join(OPTIONS)}"
        )
    given = {name: values[name] for name in OPTIONS if name in values}
    if given.get("schema") is not None:
        try:
            sent_schema(given["schema"])
        except OptionError as error:
            raise OptionError(f"line {number}: {error}") from None
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
    except (ValueError, AttributeError, RecursionError):
        found = {}
    if num_done >= len(lines) or found != lines[num_done].head:
        raise OptionError(
            f"line {num_done + 1} of {out} is not the reply to line {num_done + 1} of the prompts; "
            "give another --out, or delete that file"
        )
