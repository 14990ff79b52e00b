"""Is the backend that the planner chooses the fastest? By model, budget and workload.

    python benchmarks/choice.py MODEL... [--tokens N] [--rounds N] [--out FILE]

For each model two budgets: auto, and the least in which every backend has 256 tokens of context.
Workloads, greedy, with speculation unless they say otherwise: a prompt that repeats itself, one
that does not, and the latter without speculation. The planner is asked first, as it is after two
starts on this machine; then every backend writes all workloads in a process of its own, and they
take turns in every round; the best round counts. --out keeps cells, one JSON object a line, and the
summary is over all of them. Exit code 1: the choice was the fastest in fewer than nine of ten
cells, or more than 5 % slower than the fastest in one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec

BACKENDS = ("native", "llamacpp")
CONTEXT = 256
REPEATING = "Once upon a time there was a red ball. " * 4 + "Once"
PLAIN = "The old man walked to the sea and looked for"
WORKLOADS = {"repeating": (REPEATING, True), "new text": (PLAIN, True), "plain": (PLAIN, False)}


def tight_budget(model: str) -> int:
    """The least, in bytes, in which every backend has this context."""
    return max(
        edgespec.plan(model, backend=name, context=CONTEXT, max_nodes=8).planned_bytes
        for name in BACKENDS
    )


def speeds(model: str, backend: str, memory: str, tokens: int) -> dict[str, float]:
    """Tokens a second of each workload, in this process."""
    with edgespec.load(model, backend=backend, memory=memory, context=CONTEXT) as engine:
        found = {}
        for name, (prompt, speculation) in WORKLOADS.items():
            ids = engine.encode(prompt, raw=True)
            stats = [
                engine.generate(
                    ids, max_tokens=tokens, temperature=0, speculation=speculation, ignore_eos=True
                ).stats
                for _ in range(2)
            ]
            found[name] = max(one.tokens_per_second for one in stats)
    return found


def _child(*task: str) -> Any:
    """One task in a fresh process; its sentence, where it fails, ends this one."""
    found = subprocess.run(
        [sys.executable, __file__, "--task", *task],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return json.loads(found.stdout)


def cells(model: str, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """One row for each budget and workload of a model."""
    rows = []
    for budget, memory in (("auto", "auto"), ("tight", str(_child("tight", model)))):
        chosen = [_child("choose", model, memory) for _ in range(2)][-1]
        best: dict[str, dict[str, float]] = {name: {} for name in WORKLOADS}
        for _ in range(rounds):
            for backend in BACKENDS:
                found = _child("speeds", model, backend, memory, str(tokens))
                for name, speed in found.items():
                    best[name][backend] = max(speed, best[name].get(backend, 0.0))
        for name, by_backend in best.items():
            ratio = by_backend[chosen] / max(by_backend.values())
            rows.append(
                {"model": Path(model).name, "budget": budget, "workload": name}
                | {"chosen": chosen, "ratio": ratio, "speeds": by_backend}
            )
    return rows


def line(row: dict[str, Any]) -> str:
    found = "".join(f"{row['speeds'][name]:>10.1f}" for name in BACKENDS)
    return (
        f"{row['model']:<26}{row['budget']:<7}{row['workload']:<11}{found}  {row['chosen']:<10}"
        f"{row['ratio']:>6.3f}"
    )


def _task(name: str, *arguments: str) -> Any:
    if name == "tight":
        return tight_budget(*arguments)
    if name == "choose":
        model, memory = arguments
        with edgespec.load(model, memory=memory, context=CONTEXT) as engine:
            return engine.plan.backend
    model, backend, memory, tokens = arguments
    return speeds(model, backend, memory, int(tokens))


def main() -> int:
    if sys.argv[1:2] == ["--task"]:
        print(json.dumps(_task(*sys.argv[2:])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.out and options.out.exists():
        rows = [json.loads(text) for text in options.out.read_text().splitlines()]
    for model in options.models:
        found = cells(model, options.tokens, options.rounds)
        rows += found
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)
    head = "".join(f"{name:>10}" for name in BACKENDS)
    print(f"{'model':<26}{'budget':<7}{'workload':<11}{head}  {'chosen':<10}{'ratio':>6}")
    for row in rows:
        print(line(row))
    fastest = sum(row["ratio"] == 1.0 for row in rows)
    worst = min(row["ratio"] for row in rows)
    print(f"cells={len(rows)} fastest={fastest} worst ratio={worst:.3f}")
    return int(fastest < 0.9 * len(rows) or worst < 0.95)


if __name__ == "__main__":
    sys.exit(main())
