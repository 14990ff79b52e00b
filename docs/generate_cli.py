"""Writes docs/cli.md from the command line itself: python docs/generate_cli.py"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))

from edgespec.cli import app
from edgespec.engine.reply_options import ReplyOptions
from edgespec.loading.load_options import LoadOptions
from edgespec.system.option_fields import options_of
from edgespec.terminal.man_page import all_commands

PATH = Path(__file__).parent / "cli.md"
HEAD = """\
# The command line

Written by `python docs/generate_cli.py` from the commands themselves; a test compares the two.

Results go to stdout, everything else to stderr. Exit codes: 0 success, 1 failure (one sentence on
stderr says why), 2 wrong usage, 130 interrupted. `python -m edgespec` is the same as `edgespec`,
and `edgespec COMMAND --help` shows what is below in the terminal.

What can be typed in a chat is in [Chat](chat.md); `config.toml`, environment variables, shell
completion and the manual page are in [Configuration](configuration.md).
"""
TABLE = "| option | default | meaning |\n|---|---|---|\n"
SHARED = {
    "Options to load a model": (LoadOptions, "`run`, `chat`, `batch`, `plan` and `serve`"),
    "Options of a reply": (ReplyOptions, "`run`, `chat` and `batch`"),
}
"""Tables that several commands point to: the fields of a dataclass, and who takes them."""


def render() -> str:
    """The whole page."""
    commands = dict(all_commands("edgespec", typer.main.get_command(app)))
    parts, shared = [HEAD], {}
    for title, (kind, users) in SHARED.items():
        names = {option.long(name) for name, (_, _, option) in options_of(kind).items()}
        taken = [_row(one) for one in commands["edgespec run"].params if names & {*one.opts}]
        shared[title] = taken
        parts.append(f"## {title}\n\nTaken by {users}.\n\n{TABLE}{''.join(taken)}")
    parts += [_section(name, command, shared) for name, command in commands.items()]
    return "\n".join(parts)


def _section(name: str, command: Any, shared: dict[str, list[str]]) -> str:
    """One command: its help, the shared tables it takes, and a table of its own options."""
    text = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
    rows, also = list(map(_row, command.params)), []
    hidden = {_row(one): one.opts[0] for one in command.params if getattr(one, "hidden", False)}
    for title, taken in shared.items():
        if set(taken) <= set(rows):
            less = [f"`{name}`" for row, name in hidden.items() if row in taken]
            but = f" but {', '.join(less)}" if less else ""
            also.append(f"[{title.lower()}](#{title.lower().replace(' ', '-')}){but}")
            rows = [row for row in rows if row not in taken]
    rows = [row for row in rows if row not in hidden]
    lines = [f"## {name}\n\n{text}\n"]
    if also:
        lines.append(f"\nTakes the {' and the '.join(also)}.\n")
    if rows:
        lines.append(f"\n{TABLE}{''.join(rows)}")
    return "".join(lines)


def _row(option: Any) -> str:
    is_flag = getattr(option, "is_flag", False)
    if option.param_type_name == "argument":
        names = [option.metavar]
    else:
        names = [*option.opts, *option.secondary_opts]
        if not is_flag:
            names[-1] += f" {option.metavar}"
    shown = ", ".join(f"`{name}`" for name in names).replace("|", "\\|")
    if names[0] in ("`--json`", "--json"):
        return "| `--json` |  | Print JSON. |\n"
    default = "" if option.default is None or is_flag else f"`{option.default}`"
    return f"| {shown} | {default} | {option.help} |\n"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
