"""The sentence that refuses a plan: what it needs, what there is, and what would fit."""

from __future__ import annotations

from dataclasses import replace

from edgespec.errors import BudgetError
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.settings import Limits, Settings
from edgespec.memory.plan.sizing import Sizing
from edgespec.system.size import KIB, format_size, option_size


def refuse(sizing: Sizing, limits: Limits, budget: Budget) -> BudgetError:
    """The error for a budget that not even the smallest plan with the user's wishes fits."""
    footprint = sizing.footprint(limits.smallest)
    name = sizing.spec.name or "this model"
    message = (
        f"{name} needs {format_size(footprint.total_bytes)} with {_describe(limits.smallest)} "
        f"({footprint.summary()}); the budget is {format_size(budget.size_bytes)}"
    )
    return BudgetError(f"{message}; {_advice(sizing, limits, budget)}")


_JITTER_BYTES = 512 * KIB
"""What a next start may hold more than this one, so that the budget it is told to ask for fits."""
_OPTIONS = {"context": "--context", "kv_type": "--kv-type", "threads": "--threads"}
"""What to type for a setting; the others are arguments of `edgespec.load`."""


def _advice(sizing: Sizing, limits: Limits, budget: Budget) -> str:
    """The nearest ways out: one setting lowered, then all of them, then more memory."""

    def fits(settings: Settings) -> bool:
        return sizing.total(settings) <= budget.size_bytes

    advice = []
    for sequences in range(limits.wished.sequences - 1, 0, -1):
        fitting = limits.with_sequences(sequences).fit(fits)
        if fitting is not None:
            fewer = f"sequences={sequences} (--max-batch {sequences})"
            advice.append(f"{fewer} fits this budget ({_describe(fitting)})")
            break
    whole_blocks = sizing.backend == "llamacpp" and sizing.spec.head_dim % 32 == 0
    fixed = set() if sizing.backend == "native" or whole_blocks else {"kv_type"}
    lowerable = sorted(limits.pinned - fixed)
    for name in lowerable:
        fitting = limits.unpinned(name).fit(fits)
        if fitting is not None:
            advice.append(f"{_option(name, fitting)} fits this budget ({_describe(fitting)})")
    if not advice and lowerable:
        free = limits.unpinned(*lowerable)
        fitting = free.fit(fits)
        if fitting is not None:
            changed = [x for x in lowerable if getattr(fitting, x) != getattr(limits.wished, x)]
            options = " and ".join(_option(name, fitting) for name in changed)
            advice.append(f"{options} fits this budget ({_describe(fitting)})")
        elif sizing.total(free.smallest) < sizing.total(limits.smallest):
            needed = format_size(sizing.total(free.smallest))
            advice.append(
                f"the smallest plan that fits this model needs {needed} "
                f"({_describe(free.smallest)})"
            )
    advice.extend(_larger_budgets(sizing, limits, budget))
    return "; ".join(advice)


def _larger_budgets(sizing: Sizing, limits: Limits, budget: Budget) -> list[str]:
    needed = sizing.total(limits.smallest) + _JITTER_BYTES
    reachable = budget.snapshot.reachable_bytes
    if needed > reachable:
        most = f"{format_size(reachable)} is the most this process can get now"
        return [f"{most}; try a smaller model, or one with fewer bits per weight"]
    warm = replace(sizing, runtime=replace(sizing.runtime, kernels="cached"))
    later = warm.total(limits.smallest)
    if sizing.runtime.kernels == "cold" and later <= budget.size_bytes:
        return [
            f"only the first start compiles kernels: run once with --memory {option_size(needed)}; "
            f"later starts need {format_size(later)}"
        ]
    return [f"try --memory {option_size(needed)}, or a smaller model"]


def _describe(settings: Settings) -> str:
    nodes = f"{settings.max_nodes} node{'' if settings.max_nodes == 1 else 's'}"
    texts = f"{settings.sequences} replies at " if settings.sequences > 1 else ""
    return f"{texts}context {settings.context}, {settings.kv_type} KV, {nodes}"


def _option(name: str, fitting: Settings) -> str:
    value = getattr(fitting, name)
    return f"{_OPTIONS[name]} {value}" if name in _OPTIONS else f"{name}={value}"
