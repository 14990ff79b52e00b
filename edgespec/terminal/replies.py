"""The two commands that write replies: one of them, or a conversation."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgespec.terminal.options import LoadOptions, ReplyOptions
from edgespec.terminal.progress import ProgressLine
from edgespec.terminal.talk import Talk, write_pieces
from edgespec.terminal.text_io import notices, printable, stats_line

if TYPE_CHECKING:  # they bring Numba, and planning measures what the process holds without it
    from edgespec.engine.engine import Engine
    from edgespec.engine.stream import Stream


def run_once(
    prompt: str,
    load: LoadOptions,
    options: ReplyOptions,
    *,
    system: str | None,
    prefix: str | None,
    raw: bool,
    stats: bool | None,
    as_json: bool,
) -> None:
    """Write one reply to stdout, and its numbers to stderr: None if that is a terminal."""
    options.check()
    with ProgressLine() as progress, load.load(progress) as engine:
        with _stream(engine, prompt, options, system, prefix, raw) as stream:
            if as_json:
                for _ in stream:
                    pass
            else:
                write_pieces(stream)
        reply = stream.reply
        if as_json:
            fields = {
                "text": reply.text,
                "token_ids": reply.token_ids,
                "finish_reason": reply.finish_reason,
                "plan": engine.plan.as_dict(),
                "stats": reply.stats.as_dict(),
            }
            print(json.dumps(fields, ensure_ascii=False))
            return
        for notice in notices(reply):
            progress.clear()
            print(notice, file=sys.stderr)
        if stats or (stats is None and sys.stderr.isatty()):
            progress.clear()
            print(stats_line(reply.stats), file=sys.stderr)


def hold_chat(
    first: str | None,
    load: LoadOptions,
    options: ReplyOptions,
    *,
    system: str | None,
    prefix: str | None,
    as_json: bool,
) -> bool:
    """Talk until the user leaves or the pipe ends; False when a turn of a pipe failed."""
    options.check()
    with ProgressLine() as progress, load.load(progress) as engine:
        talk = Talk(engine.chat(system, prefix=prefix), options, progress, as_json)
        if not sys.stdin.isatty():
            talk.piped(first)
            return not talk.failed
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() its keys and history
        plan = engine.plan
        name = printable(engine.file.spec.name or engine.file.path.name)
        print(
            f"{name} · {plan.quantisation} · context {plan.context_length} tokens · "
            "/help for help, /bye to leave",
            file=sys.stderr,
        )
        talk.interactive(first)
    return True


@contextlib.contextmanager
def _stream(
    engine: Engine,
    prompt: str,
    options: ReplyOptions,
    system: str | None,
    prefix: str | None,
    raw: bool,
) -> Iterator[Stream]:
    """The reply's pieces, closed whatever happens; with a system message it is a chat's."""
    stream: Stream
    if system is None:
        stream = engine.stream(prompt, raw=raw, prefix=prefix, **options.as_arguments())
    else:
        stream = engine.chat(system).stream(prompt, **options.as_arguments())
    try:
        yield stream
    finally:
        stream.close()
