"""Plans, model files and findings as tables; text from files is shown, never interpreted."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgespec.models.registry import resolve
from edgespec.system.size import format_size
from edgespec.terminal.text_io import printable

if TYPE_CHECKING:
    from edgespec.memory.plan.plan import Plan
    from edgespec.terminal.doctor import Finding

_BAR = 20
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MARKS = {"ok": "✓", "note": "!", "problem": "✗"}
_STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


def _console() -> Console:
    """A terminal's own width; a pipe gets lines long enough to search in."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False)


def _grid(*columns: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(**column)
    return table


def print_plan(plan: Plan, model: str | None) -> None:
    """The settings, a bar for each part of the memory, and the reason for each choice."""
    console = _console()
    settings, *_ = plan.explain().splitlines()
    console.print(Text(f"{printable(resolve(model).name)}", style="bold"))
    console.print(Text(settings))
    console.print()
    whole = plan.budget_bytes if plan.planned_bytes * 4 >= plan.budget_bytes else plan.planned_bytes
    of_what = "the budget" if whole == plan.budget_bytes else "the total"
    table = _grid({}, {"justify": "right", "no_wrap": True}, {"no_wrap": True}, {"style": "dim"})
    for item in plan.footprint:
        share = bar(item.size_bytes, whole)
        table.add_row(item.name, format_size(item.size_bytes), Text(share, "cyan"), item.note)
    table.add_section()
    total = f"of a budget of {format_size(plan.budget_bytes)}; bars are shares of {of_what}"
    share = bar(plan.planned_bytes, whole)
    table.add_row("total", format_size(plan.planned_bytes), Text(share, "cyan"), total)
    console.print(table)
    console.print()
    for part in plan.devices:
        console.print(Text(f"· {printable(part.describe())}"))
    for reason in plan.reasons:
        console.print(Text(f"· {reason}"))
    if plan.candidates:
        console.print()
        console.print(Text("backends: tokens/s expected, plain; ms of a pass over 1 and 8 nodes"))
        console.print(_candidates(plan))
    if plan.alternatives:
        console.print()
        console.print(Text("what else could be asked for, and what the plan would take then"))
        console.print(_levers(plan))


def _candidates(plan: Plan) -> Table:
    right = {"justify": "right", "no_wrap": True}
    table = _grid({"no_wrap": True}, *[right] * 5, {"no_wrap": True}, {"overflow": "fold"})
    for one in plan.candidates:
        if not one.basis:
            table.add_row(one.backend, *[""] * 6, Text(printable(one.verdict), "dim"))
            continue
        passes = dict(one.pass_ms)
        table.add_row(
            one.backend,
            f"{one.tokens_per_second:.4g}",
            f"{one.plain_tokens_per_second:.4g}",
            *(f"{passes[size]:.3g}" if size in passes else "" for size in (1, 8)),
            format_size(one.planned_bytes),
            one.basis,
            Text(one.verdict, "dim"),
        )
    return table


def _levers(plan: Plan) -> Table:
    table = _grid({}, {}, {"justify": "right"}, {"justify": "right"}, {"style": "dim"})
    for lever in plan.alternatives:
        sign = "+" if lever.change_bytes > 0 else ""
        change = f"{sign}{format_size(lever.change_bytes)}" if lever.change_bytes else "the same"
        fits = "" if lever.total_bytes <= plan.budget_bytes else "more than the budget"
        table.add_row(lever.name, lever.option, format_size(lever.total_bytes), change, fits)
    return table


def bar(part: int, whole: int) -> str:
    """A bar as long as the part's share of the whole, in eighths of a character."""
    eighths = min(part * _BAR * 8 // max(whole, 1), _BAR * 8)
    if part > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR)


def print_about(facts: Mapping[str, Any]) -> None:
    """A model file's facts, one a line."""
    console = _console()
    table = _grid({"style": "bold", "no_wrap": True}, {"overflow": "fold"})

    def row(name: str, value: str) -> None:
        table.add_row(name, Text(printable(value)))

    row("file", f"{facts['path']}, {format_size(facts['file_bytes'])}")
    row("name", facts["name"] or "none")
    row("architecture", f"{facts['architecture']}, {_count(facts['parameters'])} parameters")
    row("quantisation", _quantisation(facts["quantisation"]))
    row(
        "shape",
        f"{facts['layers']} layers of width {facts['width']}, feed-forward "
        f"{facts['feed_forward_width']}, {facts['heads']} heads of {facts['head_width']} on "
        f"{facts['kv_heads']} key-value heads",
    )
    row("context", f"{facts['context_length']} tokens")
    row("vocabulary", f"{facts['vocabulary']} tokens")
    row("tokenizer", _tokenizer(facts["tokenizer"]))
    row("chat template", _shortened(facts["chat_template"]))
    if facts["adapter"] is not None:
        row("adapter", _adapter(facts["adapter"]))
    console.print(table)
    console.print(Text("\nmetadata", style="bold"))
    listing = _grid({"no_wrap": True}, {"overflow": "fold"})
    for key, value in facts["metadata"].items():
        listing.add_row(Text(printable(key)), Text(printable(_shortened(str(value)))))
    console.print(listing)
    if "tensors" in facts:
        console.print(Text("\ntensors", style="bold"))
        _print_tensors(console, facts["tensors"])


def _print_tensors(console: Console, tensors: Sequence[Mapping[str, Any]]) -> None:
    table = _grid({"overflow": "fold"}, {}, {}, {"justify": "right"})
    for info in tensors:
        shape = " x ".join(map(str, info["shape"]))
        table.add_row(
            Text(printable(info["name"])), info["type"], shape, format_size(info["bytes"])
        )
    console.print(table)


def _adapter(facts: Mapping[str, Any]) -> str:
    if "error" in facts:
        return f"not used: {facts['error']}"
    exits = "; ".join(
        f"layer {fit['layer']} foretells {100 * fit['before']:.1f} -> {100 * fit['after']:.1f} % "
        f"of tokens{'' if fit['pays'] else ', does not pay'}"
        for fit in facts["exits"]
    )
    return f"{facts['path']}: {exits}"


def _count(number: int) -> str:
    for unit, scale in (("billion", 10**9), ("million", 10**6), ("thousand", 10**3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return str(number)


def _quantisation(types: Mapping[str, Mapping[str, int]]) -> str:
    parts = (
        f"{name} {format_size(values['bytes'])} in {values['tensors']} "
        f"tensor{'' if values['tensors'] == 1 else 's'}"
        for name, values in types.items()
    )
    return ", ".join(parts)


def _tokenizer(facts: Mapping[str, Any]) -> str:
    kinds = {"llama": "SentencePiece-style", "gpt2": "byte-level BPE"}
    kind = kinds.get(facts["kind"], facts["kind"])
    text = f"{kind}, pre-tokenizer {facts['pre']}" if "pre" in facts else kind
    if "error" in facts:
        return f"{text}; unusable: {facts['error']}"
    ends = " ".join(facts["end_tokens"].values()) or "none"
    bos = (
        "a text starts with the beginning-of-text token" if facts["adds_bos"] else "no token first"
    )
    return f"{text}; a reply ends at {ends}; {bos}"


def _shortened(text: str | None) -> str:
    if text is None:
        return "none: `edgespec run --raw` continues texts, and there is no chat"
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:100]}… ({len(text)} characters)"


def print_findings(findings: Sequence[Finding]) -> None:
    """A mark, what was looked at, what was found; the advice under it."""
    console = _console()
    table = _grid({}, {"style": "bold", "no_wrap": True}, {"overflow": "fold"})
    for finding in findings:
        style = _STYLES[finding.status]
        mark = Text(_MARKS[finding.status], style)
        table.add_row(mark, finding.name, Text(printable(finding.text)))
        if finding.advice:
            table.add_row("", "", Text(f"→ {printable(finding.advice)}", style))
    console.print(table)
    problems = sum(finding.status == "problem" for finding in findings)
    notes = sum(finding.status == "note" for finding in findings)
    said = (
        f"{problems} problem{'' if problems == 1 else 's'}, {notes} note{'' if notes == 1 else 's'}"
    )
    console.print(Text(f"\n{said}"))
