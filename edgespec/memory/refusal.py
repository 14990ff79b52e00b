"""The sentence that refuses a plan: what was needed, what there is, and what would fit."""

from __future__ import annotations

from dataclasses import replace

from edgespec.errors import BudgetError
from edgespec.memory.budget import Budget
from edgespec.memory.settings import Limits, Settings
from edgespec.memory.size import format_size, option_size
from edgespec.memory.sizing import Sizing


def refuse(sizing: Sizing, limits: Limits, budget: Budget) -> BudgetError:
    """The error for a budget that not even the smallest plan with the user's wishes fits."""
    footprint = sizing.footprint(limits.smallest)
    name = sizing.spec.name or "this model"
    message = (
        f"{name} needs {format_size(footprint.total_bytes)} with {_describe(limits.smallest)}: "
        f"{footprint.summary()}; the budget is {format_size(budget.size_bytes)}"
    )
    return BudgetError(f"{message}; {_advice(sizing, limits, budget)}")


def _advice(sizing: Sizing, limits: Limits, budget: Budget) -> str:
    """The nearest ways out, the one that keeps most of what was asked first."""
    advice = []
    smaller = limits.with_kv("int8")
    whole_blocks = sizing.backend == "llamacpp" and sizing.spec.head_dim % 32 == 0
    if (sizing.backend == "native" or whole_blocks) and limits.wished.kv_type != "int8":
        fitting = smaller.fit(lambda settings: sizing.total(settings) <= budget.size_bytes)
        if fitting is not None:
            advice.append(f"--kv-type int8 fits this budget ({_describe(fitting)})")
    for sequences in range(limits.wished.sequences - 1, 0, -1):
        fewer = limits.with_sequences(sequences)
        fitting = fewer.fit(lambda settings: sizing.total(settings) <= budget.size_bytes)
        if fitting is not None:
            fewer_texts = f"sequences={sequences} (--max-batch {sequences})"
            advice.append(f"{fewer_texts} fits this budget ({_describe(fitting)})")
            break
    if limits.pinned:
        free = limits.unpinned(sizing.spec)
        smallest = free.smallest
        fitting = free.fit(lambda settings: sizing.total(settings) <= budget.size_bytes)
        if fitting is not None:
            advice.append(f"{_options(fitting, limits)} fits this budget")
        elif sizing.total(smallest) < sizing.total(limits.smallest):
            needed = format_size(sizing.total(smallest))
            advice.append(
                f"the smallest plan that fits this model needs {needed} ({_describe(smallest)})"
            )
    advice.extend(_larger_budgets(sizing, limits, budget))
    return "; ".join(advice)


def _larger_budgets(sizing: Sizing, limits: Limits, budget: Budget) -> list[str]:
    needed = sizing.total(limits.smallest)
    reachable = budget.snapshot.reachable_bytes
    if needed > reachable:
        most = f"{format_size(reachable)} is all this process can have now"
        return [f"{most}, so try a smaller or more strongly quantised model"]
    warm = replace(sizing, runtime=replace(sizing.runtime, kernels="cached"))
    later = warm.total(limits.smallest)
    if sizing.runtime.kernels == "cold" and later <= budget.size_bytes:
        return [
            f"only the first start compiles kernels: run once with --memory {option_size(needed)} "
            f"and later starts need {format_size(later)}"
        ]
    return [f"try --memory {option_size(needed)}, or a smaller model"]


def _describe(settings: Settings) -> str:
    nodes = f"{settings.max_nodes} node{'' if settings.max_nodes == 1 else 's'}"
    texts = f"{settings.sequences} texts of " if settings.sequences > 1 else ""
    return f"{texts}context {settings.context}, {nodes}"


def _options(fitting: Settings, limits: Limits) -> str:
    """The pinned levers, as options that would fit, and only those that must change."""
    names = {"context": "--context", "max_nodes": "max nodes"}
    parts = [
        f"{names[lever]} {getattr(fitting, lever)}"
        for lever in sorted(limits.pinned)
        if getattr(fitting, lever) < getattr(limits.wished, lever)
    ]
    return " with ".join(parts) if parts else f"a plan with {_describe(fitting)}"
