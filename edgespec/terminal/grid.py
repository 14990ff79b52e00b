"""What all tables on a terminal are made of."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

_BAR = 20
_NARROW = 72
_EIGHTHS = " ▏▎▍▌▋▊▉"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The reader has what it wanted: an end, and no failure as Rich takes it for."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def wide_console() -> Console:
    """A terminal's own width; a pipe gets lines long enough to search in."""
    return _Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False)


def is_narrow(console: Console) -> bool:
    """Whether only the first columns of a table have room."""
    return console.width < _NARROW


def grid(*columns: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(**column)
    return table


def bar(part: int, whole: int) -> str:
    """A bar as long as the part's share of the whole, in eighths of a character."""
    eighths = min(part * _BAR * 8 // max(whole, 1), _BAR * 8)
    if part > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR)
