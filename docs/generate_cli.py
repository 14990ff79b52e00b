"""Writes docs/cli.md from the command line itself: python docs/generate_cli.py"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))

from edgespec.cli import app

PATH = Path(__file__).parent / "cli.md"
HEAD = """\
# The command line

Written by `python docs/generate_cli.py` from the commands themselves; a test compares the two.

Text goes to stdout, everything else to stderr. Exit codes: 0 done, 1 the work failed (one sentence
on stderr says why), 2 wrong usage, 130 interrupted. A reader that leaves early (`| head -1`) is no
error. `python -m edgespec` is the same as `edgespec`.

In a chat at a terminal, `/help` lists what can be typed besides messages: `/clear`,
`/set NAME VALUE`, `/stats`, `/bye`, and three double quotes around a message of several lines.
Ctrl-C stops a reply and keeps the conversation; at the prompt it leaves.
"""


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, command in _commands("edgespec", typer.main.get_command(app)):
        text = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
        rows = [f"## {name}\n\n{text}\n\n| option | default | meaning |\n|---|---|---|\n"]
        rows += map(_row, command.params)
        parts.append("".join(rows))
    return "\n".join(parts)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands of a group by their whole names, those of groups inside it too."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part, inner in command.commands.items():
        yield from _commands(f"{name} {part}", inner)


def _row(option: Any) -> str:
    is_flag = getattr(option, "is_flag", False)
    if option.param_type_name == "argument":
        names = [option.metavar]
    else:
        names = [*option.opts, *option.secondary_opts]
        if not is_flag:
            names[-1] += f" {option.metavar}"
    shown = ", ".join(f"`{name}`" for name in names).replace("|", "\\|")
    default = "" if option.default is None or is_flag else f"`{option.default}`"
    return f"| {shown} | {default} | {option.help} |\n"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
