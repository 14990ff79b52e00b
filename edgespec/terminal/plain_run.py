"""The shortest way to a reply: `edgespec run` with options that say plainly what they mean."""

from __future__ import annotations

import sys

from edgespec.engine.reply_options import ReplyOptions
from edgespec.loading.load_options import LoadOptions
from edgespec.terminal.config_file import config_place
from edgespec.terminal.outcome import exit_code, faults_told
from edgespec.terminal.plain_words import plain_words
from edgespec.terminal.run_reply import RunOptions, run_reply

LEFT_OUT = ("sequences",)
"""Options that make no sense for one reply."""


def plain_run(words: list[str]) -> bool:
    """Do what a command line asks, and end with an exit code unless all went well; False where it
    is for Typer to read, with nothing done.
    """
    if words[:1] != ["run"]:
        return False
    read = plain_words(words[1:], (LoadOptions, ReplyOptions, RunOptions), LEFT_OUT)
    if read is None or len(read[0]) > 1 or _has_config():
        return False
    prompts, (load, reply, options) = read
    with faults_told():
        code = exit_code(lambda: run_reply(next(iter(prompts), None), load, reply, options))
    if code:
        sys.exit(code)
    return True


def _has_config() -> bool:
    """Whether there is a `config.toml`, or what may be one."""
    try:
        return config_place().exists()
    except OSError:
        return True
