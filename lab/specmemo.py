"""How little memory speculation needs: generation memory and speed against the budget.

    python benchmarks/specmemo.py QUESTIONS.jsonl[.gz] MODEL... [--questions 8] [--tokens 128]
                                  [--rounds 3] [--steps 12] [--out FILE] [--plot FILE]

SpecMemo's experiment ("SpecMemo: Speculative Decoding is in Your Pocket"): replies to MT-Bench's
questions, one at a time, with speculation. Generation memory is the most a process is resident in
while it replies, less what it was resident in when the model was loaded.

Unconstrained is f16 keys and values, 64 nodes, and keys and values of the whole context reserved
before the first reply, as engines do that allocate their cache at the start. It is compared with
the same engine at budgets from the smallest there is a plan for to a half more than it needs for
the questions. Every run is a process of its own; runs of all budgets take turns, round by round.
Speeds are tokens a second of decoding over all questions. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.system.resident_memory import peak_resident_bytes, reset_peak, resident_bytes
from edgespec.system.size import MIB, format_size
from edgespec.tools.bench.machine import Machine
from edgespec.tools.bench.picture import Picture

MT_BENCH = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"
)  # fmt: skip
SPEED_KEPT = 0.99
_COLOURS = ("#111111", "#b3462c", "#4f7cac")
_MARKERS = ("o", "s", "^")


def questions(path: Path, number: int) -> list[str]:
    """First turns of so many of MT-Bench's questions, from each of its categories in turn."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        records = [record for record in map(json.loads, lines) if record["category"] in MT_BENCH]
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
    low, high = 0, edgespec.memory.snapshot().reachable_bytes // MIB
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
        return max(len(engine.encode(text)) + task["tokens"] + 1 for text in task["questions"])


def child(kind: str, model: str, budget: int, task: dict[str, Any]) -> Any:
    """One task in a process of its own."""
    command = [sys.executable, __file__, "--task", kind, model, str(budget)]
    done = subprocess.run(
        command, input=json.dumps(task), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{model} at {budget}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def serve(kind: str, model: str, budget: int) -> Any:
    task = json.load(sys.stdin)
    if kind == "longest":
        return longest(model, task)
    if kind == "smallest":
        return smallest_budget(model, budget)
    if kind == "plan":
        return edgespec.plan(
            model, backend="native", kv_type="f16", max_nodes=64, context=task["context"]
        ).planned_bytes
    return run_once(model, budget, task)


def measure(model: str, task: dict[str, Any], steps: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Median of rounds of each budget, the unconstrained run first."""
    needed = child("longest", model, 0, task)
    smallest = child("smallest", model, needed, task)
    unconstrained = child("plan", model, 0, task)
    width = max(MIB, (unconstrained - smallest) // MIB // steps * MIB)
    budgets = [0, *(smallest + width * step for step in range(steps))]
    child("run", model, 0, task)  # kernels are compiled and the cost curve is measured once
    runs: dict[int, list[dict[str, Any]]] = {budget: [] for budget in budgets}
    for turn in range(rounds):
        for budget in budgets if turn % 2 else budgets[::-1]:
            runs[budget].append(child("run", model, budget, task))
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


def table(rows: list[dict[str, Any]]) -> str:
    """One model's lines, and what the smallest budget that keeps the speed saves."""
    free = rows[0]
    lines = [
        f"{'budget':>12}{'peak':>12}{'generation':>12}{'less':>7}{'tokens/s':>10}{'spread':>16}"
        f"{'speed':>8}{'context':>9}{'KV':>6}{'nodes':>7}"
    ]
    for row in rows:
        less = 1 - row["generation_bytes"] / free["generation_bytes"]
        speed = row["tokens_per_second"] / free["tokens_per_second"]
        spread = f"{row['slowest']:.1f}-{row['fastest']:.1f}"
        budget = format_size(row["budget_bytes"]) if row["budget_bytes"] else "none"
        lines.append(
            f"{budget:>12}{format_size(row['peak_bytes']):>12}"
            f"{format_size(row['generation_bytes']):>12}{less:>7.0%}"
            f"{row['tokens_per_second']:>10.1f}{spread:>16}{speed:>8.3f}{row['context']:>9}"
            f"{row['kv_type']:>6}{row['max_nodes']:>7}"
        )
    kept = [
        row
        for row in rows[1:]
        if row["tokens_per_second"] >= SPEED_KEPT * free["tokens_per_second"]
    ]
    if kept:
        best = kept[0]
        less = 1 - best["generation_bytes"] / free["generation_bytes"]
        lines.append(
            f"{free['model']}: {format_size(best['budget_bytes'])} is enough for {SPEED_KEPT:.0%} "
            f"of the speed, with {less:.0%} less generation memory"
        )
    else:
        lines.append(f"{free['model']}: no budget kept {SPEED_KEPT:.0%} of the speed")
    return "\n".join(lines)


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


def main() -> None:
    if sys.argv[1:2] == ["--task"]:
        print(json.dumps(serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--context", type=int, help="the unconstrained run's; else the model's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, help="append each model's rows, a JSON object a line")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    picture = Picture(options.plot) if options.plot else None
    print(
        f"{Machine.here().processor}; {options.questions} questions, {options.tokens} tokens each"
    )
    tables = []
    for model in options.models:
        task = {
            "questions": questions(options.file, options.questions),
            "tokens": options.tokens,
            "context": options.context,
        }
        rows = list(measure(model, task, options.steps, options.rounds))
        tables.append(rows)
        print(table(rows), flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    if picture:
        draw(picture, tables)


if __name__ == "__main__":
    main()
