"""Replies to a file of prompts: lines in, lines out in the same order; what is there is kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from edgespec.errors import OptionError
from edgespec.terminal.options import LoadOptions, ReplyOptions
from edgespec.terminal.progress import ProgressLine
from edgespec.tools.answer_file import Answer, Line, answers

OPTIONS = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed",
    "ignore_eos", "accept", "raw",
)  # fmt: skip
"""What a line may have besides its prompt, and an id that comes back with the reply."""


def run_batch(
    path: str,
    out: str | None,
    load: LoadOptions,
    options: ReplyOptions,
    *,
    raw: bool,
    ray: str | None = None,
) -> bool:
    """Answer all lines that `out` does not hold yet; False when some could not be answered.

    On the nodes of the Ray cluster at the address `ray`, or here if that is None.
    """
    options.check()
    lines = read_lines(path)
    defaults = options.as_arguments() | {"raw": raw}
    with _output(out, lines) as (target, num_done), ProgressLine() as progress:
        left = lines[num_done:]
        if not left:
            return True
        if ray is None:
            with load.load(progress) as engine:
                return _write(left, answers(engine, left, defaults), target, progress)
        from edgespec.tools.cluster.cluster import cluster_answers

        for line in left:  # a node could only leave for it
            _check_options(line, options)

        def note(said: str) -> None:
            progress.clear()
            print(f"edgespec: {said}", file=sys.stderr)

        progress("cluster", 0, 1)
        found = cluster_answers(ray, left, asdict(load), defaults, note)
        return _write(left, found, target, progress)


def _check_options(line: Line, options: ReplyOptions) -> None:
    own = {name: value for name, value in line.options.items() if name != "raw"}
    try:
        replace(options, **own).check()
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
        print(f"edgespec: {num_failed} of {len(lines)} prompts have no reply", file=sys.stderr)
    return not num_failed


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
