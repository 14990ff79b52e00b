"""`edgespec doctor`: what was found, and advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from edgespec.terminal.grid import grid, wide_console
from edgespec.terminal.text_io import printable

if TYPE_CHECKING:
    from edgespec.terminal.doctor import Finding

_MARKS = {"ok": "✓", "absent": "–", "note": "!", "problem": "✗"}
_STYLES = {"ok": "green", "absent": "dim", "note": "yellow", "problem": "red"}


def print_findings(findings: Sequence[Finding]) -> None:
    """A mark, what was looked at, what was found; the advice under it."""
    console = wide_console()
    table = grid({}, {"style": "bold", "no_wrap": True}, {"overflow": "fold"})
    for finding in findings:
        style = _STYLES[finding.status]
        mark = Text(_MARKS[finding.status], style)
        table.add_row(mark, finding.name, Text(printable(finding.text)))
        if finding.advice:
            table.add_row("", "", Text(f"→ {printable(finding.advice)}", style))
    console.print(table)
    problems = sum(finding.status == "problem" for finding in findings)
    notes = sum(finding.status == "note" for finding in findings)
    summary = (
        f"{problems} problem{'' if problems == 1 else 's'}, {notes} note{'' if notes == 1 else 's'}"
    )
    console.print(Text(f"\n{summary}"))
