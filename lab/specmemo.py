"""Replies inside budgets, for the figure of speed against memory.

"SpecMemo: Speculative Decoding is in Your Pocket" has the experiment.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import edgespec
from edgespec.system.hardware import snapshot
from edgespec.system.resident_memory import peak_resident_bytes, reset_peak, resident_bytes
from edgespec.system.size import MIB
from edgespec.tools.bench.picture import Picture
from lab.harness import in_process, read_lines

MT_BENCH = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"
)  # fmt: skip
_COLOURS = ("#111111", "#b3462c", "#4f7cac")
_MARKERS = ("o", "s", "^")


def questions(path: Path, number: int) -> list[str]:
    """First turns of so many of MT-Bench's questions, from each of its categories in turn."""
    records = [record for record in read_lines(path) if record["category"] in MT_BENCH]
    order: dict[str, int] = {}
    places = []
    for record in records:
        order[record["category"]] = order.get(record["category"], 0) + 1
        places.append((order[record["category"]], MT_BENCH.index(record["category"])))
    ranked = sorted(zip(places, records, strict=True), key=lambda pair: pair[0])
    return [record["turns"][0] for _, record in ranked[:number]]


def run_once(model: str, budget: int, task: dict[str, Any]) -> dict[str, Any]:
    """Reply to all questions inside a budget of bytes; 0: unconstrained."""
    options: dict[str, Any] = {"backend": "native"}
    if budget:
        options["memory"] = budget
    else:
        options |= {"kv_type": "f16", "max_nodes": 64, "context": task["context"]}
    with edgespec.load(model, **options) as engine:
        engine.cost_curve()
        loaded = resident_bytes()
        reset_peak()
        reserved = [] if budget else _reserve(engine)
        tokens, seconds = 0, 0.0
        for text in task["questions"]:
            reply = engine.generate(
                text, max_tokens=task["tokens"], temperature=0.0, ignore_eos=True
            )
            tokens += len(reply.token_ids)
            seconds += len(reply.token_ids) / reply.stats.tokens_per_second
        del reserved
        return {
            "generation_bytes": peak_resident_bytes() - loaded,
            "peak_bytes": peak_resident_bytes(),
            "tokens_per_second": tokens / seconds,
            "planned_bytes": engine.plan.planned_bytes,
            "context": engine.plan.context_length,
            "kv_type": engine.plan.kv_type,
            "max_nodes": engine.plan.max_nodes,
        }


def _reserve(engine: edgespec.Engine) -> list[bytearray]:
    """Touched memory for the keys and values that replies to short questions leave untouched."""
    planned = engine.plan.footprint["KV cache"]
    return [bytearray(b"\1") * (planned - planned // (engine.plan.context_length // 256))]


def smallest_budget(model: str, context: int) -> int:
    """The fewest whole MiB, in bytes, that there is a plan for that holds the questions."""
    low, high = 0, snapshot().reachable_bytes // MIB
    while high - low > 1:
        middle = (low + high) // 2
        try:
            plan = edgespec.plan(model, memory=middle * MIB, backend="native")
            fits = plan.context_length >= context
        except edgespec.BudgetError:
            fits = False
        low, high = (low, middle) if fits else (middle, high)
    return high * MIB


def longest(model: str, task: dict[str, Any]) -> int:
    """Positions that the longest question and its reply take, and what the model takes at most."""
    with edgespec.load(model, backend="native") as engine:
        return max(map(len, map(engine.encode, task["questions"]))) + int(task["tokens"]) + 1


def planned_unconstrained(model: str, task: dict[str, Any]) -> int:
    """What the plan without a budget takes, in bytes."""
    return edgespec.plan(
        model, backend="native", kv_type="f16", max_nodes=64, context=task["context"]
    ).planned_bytes


def _child(function: Callable[..., Any], *arguments: Any) -> Any:
    found = in_process(function, *arguments)
    if isinstance(found, dict) and "error" in found:
        raise SystemExit(f"{function.__name__} {arguments[:2]}: {found['error']}")
    return found


def measure(model: str, task: dict[str, Any], steps: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Median of rounds of each budget, the unconstrained run first."""
    needed = _child(longest, model, task)
    smallest = _child(smallest_budget, model, needed)
    unconstrained = _child(planned_unconstrained, model, task)
    width = max(MIB, (unconstrained - smallest) // MIB // steps * MIB)
    budgets = [0, *(smallest + width * step for step in range(steps))]
    _child(run_once, model, 0, task)  # kernels are compiled and the cost curve is measured once
    runs: dict[int, list[dict[str, Any]]] = {budget: [] for budget in budgets}
    for turn in range(rounds):
        for budget in budgets if turn % 2 else budgets[::-1]:
            runs[budget].append(_child(run_once, model, budget, task))
    for budget, found in runs.items():
        speeds = [run["tokens_per_second"] for run in found]
        yield {
            "model": Path(model).stem,
            "budget_bytes": budget,
            **found[0],
            "generation_bytes": max(run["generation_bytes"] for run in found),
            "peak_bytes": max(run["peak_bytes"] for run in found),
            "tokens_per_second": statistics.median(speeds),
            "slowest": min(speeds),
            "fastest": max(speeds),
        }


def draw(picture: Picture, tables: list[list[dict[str, Any]]]) -> None:
    """Speed against budget, a panel for each model, its smallest budget marked."""
    figure = picture.figure(3.6 * len(tables), 3.4)
    panels = figure.subplots(1, len(tables), squeeze=False)[0]
    for place, (axes, rows) in enumerate(zip(panels, tables, strict=True)):
        free, *planned = rows
        sizes = [row["budget_bytes"] / MIB for row in planned]
        speeds = [row["tokens_per_second"] for row in planned]
        spread = [
            [speed - row["slowest"] for speed, row in zip(speeds, planned, strict=True)],
            [row["fastest"] - speed for speed, row in zip(speeds, planned, strict=True)],
        ]
        colour, marker = _COLOURS[place % 3], _MARKERS[place % 3]
        axes.errorbar(sizes, speeds, spread, color=colour, marker=marker, capsize=2, markersize=4)
        axes.axhline(free["tokens_per_second"], color="#777777", linestyle="--", linewidth=1)
        axes.axvline(sizes[0], color="#777777", linestyle=":", linewidth=1)
        axes.annotate(
            f"least: {sizes[0]:.0f} MiB", (sizes[0], 0), (4, 6), textcoords="offset points",
            fontsize=8,
        )  # fmt: skip
        axes.annotate(
            f"unconstrained, {free['peak_bytes'] / MIB:.0f} MiB",
            (sizes[-1], free["tokens_per_second"]), (0, -14), textcoords="offset points",
            ha="right", fontsize=8,
        )  # fmt: skip
        axes.set_ylim(0, 1.25 * max(*speeds, free["tokens_per_second"]))
        axes.set_title(free["model"], fontsize=10)
        axes.set_xlabel("memory budget, MiB")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("tokens a second")
    picture.save(figure)
