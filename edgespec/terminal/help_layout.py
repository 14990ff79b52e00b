"""Help in plain text: what people need every day first, readable on narrow terminals too.

Typer's own layout of panels needs Rich, and `--help` is to answer at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
TUNING = "Tuning"
"""The panel of options that work well as they are."""
_NARROW, _WIDE = 60, 80
"""Below the first, what an option means stands under it; no line is longer than the second."""


class Command(TyperCommand):
    """A command whose options are listed by panel."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.width = text_width()
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """A group whose commands are listed by panel."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.width = text_width()
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        rows = []
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                said = command.get_short_help_str(200)
                rows.append((command.rich_help_panel or "Commands", (name, said)))
        _write_panels(formatter, rows)


class App(typer.Typer):
    """A Typer app whose commands are laid out like this."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[FunctionT], FunctionT]:
        return super().command(name, **({"cls": Command} | options))


def text_width() -> int:
    """Columns of help."""
    return max(min(shutil.get_terminal_size().columns, _WIDE) - 2, 20)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    rows = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            is_argument = parameter.param_type_name == "argument"
            usual = "Arguments" if is_argument else "Options"
            first = parameter.metavar if is_argument else record[0]
            rows.append((getattr(parameter, "rich_help_panel", None) or usual, (first, record[1])))
    order = ("Arguments", "Options", TUNING)
    rows.sort(key=lambda row: order.index(row[0]) if row[0] in order else len(order))
    _write_panels(formatter, rows)


def _write_panels(formatter: Any, rows: Iterable[tuple[str, tuple[str, str]]]) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    for panel, row in rows:
        panels.setdefault(panel, []).append(row)
    for panel, listed in panels.items():
        with formatter.section(panel):
            _write_list(formatter, listed)


def _write_list(formatter: Any, rows: Sequence[tuple[str, str]]) -> None:
    if formatter.width + 2 >= _NARROW:
        formatter.write_dl(rows)
        return
    for first, second in rows:
        formatter.write(f"{'':{formatter.current_indent}}{first}\n")
        with formatter.indentation(), formatter.indentation():
            formatter.write_text(second)
