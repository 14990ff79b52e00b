"""`edgespec plan`: settings, a bar for each part of the memory, reasons, and alternatives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from edgespec.models.registry import NotPulledError, resolve
from edgespec.system.size import format_size
from edgespec.terminal.grid import bar, grid, is_narrow, wide_console
from edgespec.terminal.text_io import printable

if TYPE_CHECKING:
    from edgespec.memory.plan.plan import Plan


def print_plan(plan: Plan, model: str | os.PathLike[str] | None) -> None:
    """The settings, a bar for each part of the memory, and the reason for each choice."""
    console = wide_console()
    settings, *_ = plan.explain().splitlines()
    console.print(Text(printable(_name(model)), style="bold"))
    console.print(Text(settings))
    console.print()
    whole = plan.budget_bytes if plan.planned_bytes * 4 >= plan.budget_bytes else plan.planned_bytes
    of_what = "the budget" if whole == plan.budget_bytes else "the total"
    narrow = is_narrow(console)
    size: dict[str, Any] = {"justify": "right", "no_wrap": True}
    rest: list[dict[str, Any]] = [] if narrow else [{"no_wrap": True}, {"style": "dim"}]
    table = grid({}, size, *rest)
    rows = [(item.name, item.size_bytes, item.note) for item in plan.footprint]
    budget = f"of a budget of {format_size(plan.budget_bytes)}"
    total = f"{budget}; bars are shares of {of_what}"
    for name, size_bytes, note in (*rows, ("total", plan.planned_bytes, total)):
        share = (Text(bar(size_bytes, whole), "cyan"), note)
        table.add_row(name, format_size(size_bytes), *(() if narrow else share))
    console.print(table)
    if narrow:
        console.print(Text(budget, "dim"))
    console.print()
    for part in plan.devices:
        console.print(Text(f"· {printable(part.describe())}"))
    for reason in plan.reasons:
        console.print(Text(f"· {reason}"))
    if plan.candidates:
        console.print()
        console.print(Text("Expected speed of each backend:"))
        console.print(_candidates(plan, narrow))
    if plan.alternatives:
        console.print()
        console.print(Text("What changing one setting would give:"))
        console.print(_alternatives(plan, narrow))


def print_summary(
    plan: Plan, model: str | os.PathLike[str] | None, last_rate: float | None = None
) -> None:
    """The plan in three lines: whether it fits, how it runs, how fast; `last_rate` is that of a
    reply in tokens a second, if there was one.
    """
    console = wide_console()
    planned, budget = format_size(plan.planned_bytes), format_size(plan.budget_bytes)
    threads = f"{plan.threads} thread{'' if plan.threads == 1 else 's'}"
    console.print(Text(printable(_name(model)), "bold"), f"fits: {planned} of {budget}")
    console.print(
        f"{plan.quantisation}, context {plan.context_length:,} tokens ({plan.kv_type} KV), "
        f"backend {plan.backend}, {threads}"
    )
    console.print(_speed(plan, last_rate))


def _speed(plan: Plan, last_rate: float | None) -> str:
    chosen = next((one for one in plan.candidates if one.backend == plan.label), None)
    if chosen is None or not chosen.tokens_per_second:
        if last_rate is not None:
            return f"The last reply came at {_rate(last_rate)} tokens/s. -v shows the whole plan."
        return "The first reply measures how fast it is here. -v shows the whole plan."
    slow, fast = sorted((chosen.plain_tokens_per_second, chosen.tokens_per_second))
    basis = chosen.basis
    if basis.endswith(" under load"):
        basis = f"{basis.removesuffix(' under load')} while other programs were busy; plan again "
        basis += "when they are not"
    return f"About {_rate(slow)} to {_rate(fast)} tokens/s ({basis}). -v shows the whole plan."


def _rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.0f}" if tokens_per_second >= 10 else f"{tokens_per_second:.1f}"


def _name(model: str | os.PathLike[str] | None) -> str:
    try:
        return resolve(model).name
    except NotPulledError as missing:
        return f"{missing.reference} (not downloaded)"


def _candidates(plan: Plan, narrow: bool) -> Table:
    if narrow:
        table = grid({"no_wrap": True}, {})
        for one in plan.candidates:
            said = f"{one.tokens_per_second:.4g} tokens/s ({one.basis})" if one.basis else ""
            name = Text(printable(one.backend))
            table.add_row(name, Text(said or printable(one.verdict)))
        return table
    right = {"justify": "right", "no_wrap": True}
    table = grid({"no_wrap": True}, *[right] * 5, {"no_wrap": True}, {"overflow": "fold"})
    head = ("", "tokens/s", "plain", "1 node, ms", "8 nodes, ms", "memory")
    table.add_row(*(Text(name, "dim") for name in head))
    for one in plan.candidates:
        if not one.basis:
            verdict = Text(printable(one.verdict), "dim")
            table.add_row(printable(one.backend), *[""] * 6, verdict)
            continue
        passes = dict(one.pass_ms)
        table.add_row(
            Text(printable(one.backend)),
            f"{one.tokens_per_second:.4g}",
            f"{one.plain_tokens_per_second:.4g}",
            *(f"{passes[size]:.3g}" if size in passes else "" for size in (1, 8)),
            format_size(one.planned_bytes),
            one.basis,
            Text(one.verdict, "dim"),
        )
    return table


def _alternatives(plan: Plan, narrow: bool) -> Table:
    right = {"justify": "right", "no_wrap": True}
    table = grid({}, right) if narrow else grid({}, {}, right, right, {"style": "dim"})
    if not narrow:
        table.add_row("", "", Text("memory", "dim"), Text("change", "dim"), "")
    for one in plan.alternatives:
        sign = "+" if one.change_bytes > 0 else ""
        change = f"{sign}{format_size(one.change_bytes)}" if one.change_bytes else "no change"
        fits = "" if one.total_bytes <= plan.budget_bytes else "exceeds the budget"
        if narrow:
            table.add_row(one.option or one.name, change)
            continue
        table.add_row(one.name, one.option, format_size(one.total_bytes), change, fits)
    return table
