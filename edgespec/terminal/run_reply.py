"""`edgespec run` once its options are known; without Typer, whose import takes long."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from edgespec.engine.reply_options import ReplyOptions
from edgespec.errors import OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.system.option_fields import Option
from edgespec.system.records import dataclass
from edgespec.terminal.text_io import read_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What `edgespec run` takes beside the model's options and the reply's."""

    system: Annotated[str | None, Option("System message.", metavar="TEXT", short="-s")] = None
    stats: Annotated[
        bool | None,
        Option("Print statistics to stderr after the reply; by default only on a terminal."),
    ] = None
    yes: Annotated[bool, Option("Answer every question with yes.", short="-y")] = False
    as_json: Annotated[bool, Option("Print JSON to stdout and nothing else.", flag="--json")] = (
        False
    )
    json_stream: Annotated[
        bool, Option("Print each piece as a line of JSON, and last what --json prints.")
    ] = False
    record: Annotated[
        str | None, Option("Add prompt and reply to a log for replay.", metavar="FILE")
    ] = None
    record_top: Annotated[
        int, Option("Likeliest tokens recorded for each of the reply.", metavar="N")
    ] = 8


def run_reply(
    prompt: str | None, load: LoadOptions, reply: ReplyOptions, options: RunOptions
) -> None:
    """Generate one reply: the prompt is what is given, standard input, or both."""
    from edgespec.terminal.write_reply import Form, write_reply

    check_system(options.system, reply)
    if load.model is not None:
        from edgespec.terminal.pulling import with_model

        load = with_model(load, yes=options.yes)
    text = read_prompt(prompt, sys.stdin.buffer, stdin_is_terminal=sys.stdin.isatty())
    form: Form = "json-stream" if options.json_stream else "json" if options.as_json else "text"
    if options.record is not None:
        reply = replace(reply, logprobs=options.record_top)
    write_reply(
        text, load, reply, system=options.system, stats=options.stats, form=form,
        record=options.record,
    )  # fmt: skip


def check_system(system: str | None, reply: ReplyOptions) -> None:
    """Raise OptionError where a system message has no place."""
    if system is not None and reply.prefix is not None:
        raise OptionError("--prefix brings its own system message; drop it or --system")
    if system is not None and reply.raw:
        raise OptionError("--system needs the chat template that --raw leaves out; drop one")
