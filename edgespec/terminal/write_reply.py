"""`edgespec run`: one reply on stdout, its numbers on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from edgespec.engine.reply_options import ReplyOptions
from edgespec.loading.load_options import LoadOptions
from edgespec.system.option_fields import changed
from edgespec.terminal.opened_engine import check_chat_template, opened_engine
from edgespec.terminal.show_pieces import show_pieces
from edgespec.terminal.text_io import notices, stats_line

if TYPE_CHECKING:  # they bring Numba, and planning measures what the process holds without it
    from edgespec.engine.engine import Engine
    from edgespec.engine.reply_stream import Stream

Form = Literal["text", "json", "json-stream"]
"""What is written: the text, one object at the end, or a line for each piece and that object."""


def write_reply(
    prompt: str,
    load: LoadOptions,
    reply: ReplyOptions,
    *,
    system: str | None,
    stats: bool | None,
    form: Form = "text",
    record: str | None = None,
) -> None:
    """Write one reply to stdout, and its numbers to stderr: None if that is a terminal; a file to
    `record` it in gets one line more.
    """
    if system is not None:
        check_chat_template(load)
    with opened_engine(load, reply) as (engine, progress):
        with _stream(engine, prompt, reply, system) as stream:
            if form == "json-stream":
                for piece in stream:
                    _print({"reasoning" if piece.reasoning else "text": piece})
            elif form == "json":
                for _ in stream:
                    pass
            else:
                show_pieces(stream)
        made = stream.reply
        if record is not None:
            from edgespec.tools.replay.recording import append_recorded

            append_recorded(record, stream.request, made)
        if form != "text":
            fields = {
                "text": made.text,
                "reasoning": made.reasoning,
                "token_ids": made.token_ids,
                "finish_reason": made.finish_reason,
                "plan": engine.plan.as_dict(),
                "stats": made.stats.as_dict(),
            }
            _print(fields)
            return
        wanted = sys.stderr.isatty() if stats is None else stats
        for line in (*notices(made), *([stats_line(made.stats)] if wanted else [])):
            progress.clear()
            print(line, file=sys.stderr)


def _print(fields: dict[str, Any]) -> None:
    print(json.dumps(fields, ensure_ascii=False), flush=True)


@contextlib.contextmanager
def _stream(
    engine: Engine, prompt: str, reply: ReplyOptions, system: str | None
) -> Iterator[Stream]:
    """The reply's pieces, closed whatever happens; with a system message it is a chat's."""
    stream: Stream
    if system is None:
        stream = engine.stream(prompt, **changed(reply))
    else:
        stream = engine.chat(system).stream(prompt, **changed(replace(reply, raw=False)))
    try:
        yield stream
    finally:
        stream.close()
