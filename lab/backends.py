"""The same model in every backend: plain and speculative speed, T(n), peak memory.

    python benchmarks/backends.py MODEL... [--backends LIST] [--tokens N] [--rounds N] [--json]

A GGUF model is exported for the onnx backend first, to a folder that is deleted at the end.

Each backend writes a greedy reply to a prompt that repeats itself, with and without speculation, in
a process of its own; backends take turns. Medians of the rounds. Exit code 1: a peak over the
budget.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.system.size import MIB
from edgespec.tools.export.export import export

SIZES = (1, 2, 4, 8, 16)
PROMPT = "Once upon a time there was a red ball. " * 4 + "Once"
RANDOM_PROMPT = [3 + 7 * i % 11 for i in range(64)]
"""For models whose weights are random: their greedy text falls into loops."""


def run_once(model: str, backend: str, tokens: int) -> dict[str, Any]:
    """What one backend does with a model, in this process."""
    with edgespec.load(model, backend=backend, context=512) as engine:
        random = engine.file.spec.name.startswith("random")
        prompt = RANDOM_PROMPT if random else engine.tokenizer.encode(PROMPT)
        speeds: dict[bool, list[float]] = {False: [], True: []}
        steps = 0.0
        for speculation in (False, True, True, False):
            stats = engine.generate(
                prompt, max_tokens=tokens, temperature=0, speculation=speculation, ignore_eos=True
            ).stats
            speeds[speculation].append(stats.tokens_per_second)
            steps = max(steps, stats.tokens_per_step)
        curve = engine.cost_curve()
        return {
            "plain": max(speeds[False]),
            "speculative": max(speeds[True]),
            "tokens_per_step": steps,
            **{f"T({size})": 1e3 * curve[size] for size in SIZES},
            "peak_mib": stats.peak_memory_bytes / MIB,
            "planned_mib": stats.planned_memory_bytes / MIB,
            "budget_mib": engine.plan.budget_bytes / MIB,
        }


def _child(model: str, backend: str, tokens: int) -> dict[str, Any]:
    """One run in a fresh process: its numbers, or the sentence it ended with."""
    command = [sys.executable, __file__, "--task", model, backend, str(tokens)]
    found = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if found.returncode:
        return {"error": (found.stderr.strip().splitlines() or ["no message"])[-1]}
    values: dict[str, Any] = json.loads(found.stdout)
    return values


def measure(model: str, names: list[str], tokens: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Medians for each backend; all take their turn in every round."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with TemporaryDirectory(prefix="edgespec-backends-") as folder:
        if "onnx" in names:
            export(model, folder, check=False)
        for _ in range(rounds):
            for name in names:
                runs[name].append(_child(folder if name == "onnx" else model, name, tokens))
    found = {}
    for name, rows in runs.items():
        failed = next((row for row in rows if "error" in row), None)
        found[name] = failed or {
            key: statistics.median(row[key] for row in rows) for key in rows[0]
        }
    return found


def lines(model: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """The rows of a model's table."""
    head = ("plain", "speculative", "per step", *(f"T({size})" for size in SIZES))
    text = [
        f"{Path(model).name}: tokens/s, tokens per step, ms, MiB",
        f"{'':<10}" + "".join(f"{name:>12}" for name in (*head, "peak", "planned")),
    ]
    for name, row in found.items():
        if "error" in row:
            text.append(f"{name:<10}  {row['error']}")
            continue
        numbers = [row[key] for key in row if key != "budget_mib"]
        text.append(f"{name:<10}" + "".join(f"{number:>12.2f}" for number in numbers))
    return text


def main() -> int:
    if sys.argv[1:2] == ["--task"]:
        print(json.dumps(run_once(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--backends", default="native,llamacpp,onnx")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    for model in options.models:
        found = measure(model, options.backends.split(","), options.tokens, options.rounds)
        results[Path(model).name] = found
        if not options.json:
            print("\n".join(lines(model, found)), flush=True)
    if options.json:
        print(json.dumps(results))
    rows = [row for found in results.values() for row in found.values()]
    return int(any("error" in row or row["peak_mib"] > row["budget_mib"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
