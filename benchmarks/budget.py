"""Is the memory budget kept? From a budget that just fits to twice that, a process each.

    python benchmarks/budget.py MODEL... [--steps 1,1.1,1.25,1.5,2] [--context N] [--backend NAME]
        [--json]

Every run loads the model, fills the planned context (prompt, then a reply with speculation), and
tells the most it was resident in: VmHWM on Linux. "Just fits" is the smallest budget, in whole MiB,
that a plan is made for; with --context the plan must keep that context. Exit code 1: a run went
over its budget.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
import edgespec.memory
from edgespec.memory.size import MIB, format_size

REPLY_TOKENS = 64
_LARGEST_MIB = 1 << 20


def smallest_budget(model: str, backend: str, context: int | None) -> int:
    """The fewest whole MiB, in bytes, that there is a plan for in a process like this one."""
    low, high = 0, _LARGEST_MIB
    most = edgespec.memory.snapshot().reachable_bytes // MIB
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            edgespec.plan(model, memory=middle * MIB, backend=backend, context=context)
        except edgespec.BudgetError:
            low = middle
        else:
            high = middle
    return high * MIB


def run_once(model: str, backend: str, budget: int, context: int | None) -> dict[str, Any]:
    """Fill the context of one engine and tell budget, plan and peak, in bytes."""
    with edgespec.load(model, memory=budget, backend=backend, context=context) as engine:
        plan = engine.plan
        room = plan.context_length
        reply_tokens = min(REPLY_TOKENS, room // 2)
        vocab_size = engine.file.spec.vocab_size
        prompt = [3 + 37 * i % (vocab_size - 3) for i in range(room - reply_tokens)]
        stats = engine.generate(prompt, max_tokens=reply_tokens, ignore_eos=True, seed=1).stats
        return {
            "budget_bytes": budget,
            "planned_bytes": stats.planned_memory_bytes,
            "peak_bytes": stats.peak_memory_bytes,
            "context": room,
            "max_nodes": plan.max_nodes,
            "tokens_per_second": stats.tokens_per_second,
        }


def _child(task: str, model: str, *arguments: object) -> Any:
    """One task in a fresh process: its answer, or the sentence it ended with."""
    command = [sys.executable, __file__, "--task", task, model, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if found.returncode:
        return {"error": (found.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(found.stdout)


def _serve(task: str, model: str, arguments: Sequence[str]) -> None:
    context = int(arguments[-1]) or None
    if task == "smallest":
        print(json.dumps(smallest_budget(model, arguments[0], context)))
    else:
        print(json.dumps(run_once(model, arguments[0], int(arguments[1]), context)))


def measure(model: str, backend: str, steps: Sequence[float], context: int) -> list[dict[str, Any]]:
    """One row for each budget. The first start compiles, so one run comes before all others."""
    _child("run", model, backend, edgespec.memory.snapshot().reachable_bytes // 2, 0)
    smallest = _child("smallest", model, backend, context)
    if isinstance(smallest, dict):
        return [smallest | {"model": Path(model).name}]
    found = []
    for step in steps:
        budget = -(-int(smallest * step) // MIB) * MIB
        row = _child("run", model, backend, budget, context)
        found.append({"model": Path(model).name, "step": step, "budget_bytes": budget} | row)
    return found


def line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['model']:<28} {row.get('step', 0):>4}x  {row['error']}"
    peak, planned, budget = row["peak_bytes"], row["planned_bytes"], row["budget_bytes"]
    return (
        f"{row['model']:<28} {row['step']:>4}x {format_size(budget):>11} "
        f"{format_size(planned):>11} {format_size(peak):>11} {peak / budget:>11.3f} "
        f"{planned / peak:>12.3f} {row['context']:>8} {row['max_nodes']:>6} "
        f"{row['tokens_per_second']:>8.1f} {'kept' if peak <= budget else 'BROKEN'}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--task"]:
        _serve(sys.argv[2], sys.argv[3], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--steps", default="1,1.1,1.25,1.5,2")
    parser.add_argument("--context", type=int, default=0, help="0 lets the plan choose")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    steps = [float(step) for step in options.steps.split(",")]
    header = (
        "budget",
        "planned",
        "peak",
        "peak/budget",
        "planned/peak",
        "context",
        "nodes",
        "tok/s",
    )
    found = []
    if not options.json:
        widths = (11, 11, 11, 11, 12, 8, 6, 8)
        cells = " ".join(f"{name:>{width}}" for name, width in zip(header, widths, strict=True))
        print(f"{'model':<28} {'step':>5} {cells}")
    for model in options.models:
        for row in measure(model, options.backend, steps, options.context):
            found.append(row)
            if not options.json:
                print(line(row), flush=True)
    if options.json:
        print(json.dumps(found))
    broken = sum(row.get("peak_bytes", 0) > row.get("budget_bytes", 0) for row in found)
    failed = sum("error" in row for row in found)
    if not options.json:
        print(f"runs={len(found)} over budget={broken} failed={failed}")
    sys.exit(1 if broken or failed else 0)


if __name__ == "__main__":
    main()
