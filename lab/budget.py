"""Is the memory budget kept, and how little memory is enough?

    python -m lab.budget chats MODEL... [--steps 1,1.1,1.25,1.5,2] [--contexts 0,512] [--cgroup]
    python -m lab.budget matrix [--first 0] [--runs 300] [--minutes M] [--out FILE]
    python -m lab.budget endurance [MODEL] [--requests 1000]
    python -m lab.budget speed QUESTIONS.jsonl[.gz] MODEL... [--steps 8] [--plot FILE]

`chats`: ten turns that outgrow their context, a process each, at budgets from the smallest that a
plan is made for. `matrix`: runs of chance (lab/budget_matrix.py), those in FILE are not made again.
`endurance`: many requests in one process, what it holds after the first ten and after all. `speed`:
generation memory and speed against the budget (SpecMemo's experiment).
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.models.registry import resolve
from edgespec.system.size import MIB, format_size
from edgespec.tools.bench.picture import Picture
from lab import budget_matrix, specmemo
from lab.harness import (
    MODEL,
    MODELS,
    Asked,
    Records,
    Row,
    Rows,
    Script,
    Spread,
    in_process,
    numbers,
    option,
    rounds,
)
from tests.support import budget_runs
from tests.support import endurance as many_requests

MOST_GROWTH = 0.02
script = Script(__doc__)


def _steps(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


@script.command(
    MODELS,
    option("--steps", type=_steps, default=[1, 1.1, 1.25, 1.5, 2], help="times the smallest"),
    option("--contexts", type=numbers, default=[0], help="0 lets the plan choose"),
    option("--backend", default="auto"),
    option("--cold", action="store_true", help="an empty cache folder for each run: it compiles"),
    option("--cgroup", action="store_true", help="in a control group whose limit is the budget"),
    option("--out", type=Path),
)
def chats(asked: Asked) -> Rows:
    """The peak of each run beside its plan and budget. Exit code 1: over the budget."""
    records, over, failed, ratios = Records(asked.out), 0, 0, []
    for context in asked.contexts:
        for model in map(str, asked.models):
            for step in asked.steps:
                key = (model, asked.backend, context, step, asked.cold, asked.cgroup)
                found = records.get(key, partial(_run, *key))
                row = {"model": Path(model).name, "step": f"{step:g}x"}
                if "error" in found:
                    failed += 1
                    script.note(f"{row}: {found['error']}")
                    continue
                over += found["peak_bytes"] > found["budget_bytes"]
                ratios.append(found["planned_bytes"] / found["peak_bytes"])
                yield row | _chat_row(found)
    within = sum(0.95 <= ratio <= 1.05 for ratio in ratios)
    script.note(f"plan within 5 % of the peak in {within} of {len(ratios)} runs")
    script.check(not over and not failed, f"{over} runs over budget, {failed} failed")


def _run(
    model: str, backend: str, context: int, step: float, cold: bool, cgroup: bool
) -> dict[str, Any]:
    runs = budget_runs.measure(model, backend, [step], context, cold=cold, cgroup=cgroup)
    return next(iter(runs))


def _chat_row(found: dict[str, Any]) -> Row:
    peak, budget = found["peak_bytes"], found["budget_bytes"]
    row = {
        "budget": format_size(budget),
        "planned": format_size(found["planned_bytes"]),
        "peak": format_size(peak),
        "peak/budget": round(peak / budget, 3),
        "planned/peak": round(found["planned_bytes"] / peak, 3),
        "context": found["context"],
        "KV": found["kv_type"],
        "nodes": found["max_nodes"],
        "dropped": found["dropped_tokens"],
        "tokens/s": found["tokens_per_second"],
    }
    if found["cgroup"]:
        row |= {"charged": format_size(found["most_charged_bytes"])}
        row |= {"kills": found["kills"], "swapped": format_size(found["swapped_bytes"])}
    return row


@script.command(
    option("--first", type=int, default=0, help="number of the first run"),
    option("--runs", type=int, default=300),
    option("--minutes", type=float, help="begin no run later"),
    option("--out", type=Path),
)
def matrix(asked: Asked) -> Rows:
    """Runs of chance, each within its budget. Exit code 1: over the budget."""
    records = Records(asked.out)
    end = time.monotonic() + (asked.minutes or 1e9) * 60
    over, failed, refused, ratios = 0, 0, 0, []
    for number in range(asked.first, asked.first + asked.runs):
        if time.monotonic() > end:
            break
        found = records.get(number, partial(budget_matrix.run, number))
        refused += budget_matrix.is_refused(found)
        failed += "error" in found and not budget_matrix.is_refused(found)
        over += found.get("peak_bytes", 0) > found.get("budget_bytes", 0)
        if "planned_bytes" in found:
            ratios.append(found["planned_bytes"] / found["peak_bytes"])
        yield budget_matrix.row(found)
    if ratios:
        spread = Spread.of(ratios)
        told = f"{spread.low:.3f}, {spread.median:.3f}, {spread.high:.3f}"
        script.note(f"plan / peak of {len(ratios)} runs: {told}; {refused} refused")
    script.check(not over and not failed, f"{over} runs over budget, {failed} failed")


@script.command(MODEL, option("--requests", type=int, default=1000))
def endurance(asked: Asked) -> Rows:
    """Conversations that spill, batches, replies that are left, requests that are refused."""
    found = in_process(held_after_requests, str(resolve(asked.model)), asked.requests)
    script.note(", ".join(f"{count} {name}" for name, count in sorted(found["kinds"].items())))
    yield {
        "requests": found["requests"],
        **{name: found[name] / MIB for name in ("after_ten", "at_the_end", "most", "planned")},
        "tokens spilled": found["spilled_tokens"],
    }
    growth = found["growth"]
    script.check(growth <= MOST_GROWTH, f"grew by {growth:+.1%}, goal {MOST_GROWTH:.0%}")


def held_after_requests(model: str, requests: int) -> dict[str, Any]:
    return many_requests.measure(model, requests)


@script.command(
    option("file", type=Path),
    MODELS,
    option("--questions", type=int, default=8),
    option("--tokens", type=int, default=128),
    option("--context", type=int, help="the unconstrained run's; else the model's"),
    rounds(3),
    option("--steps", type=int, default=8),
    option("--plot", type=Path),
)
def speed(asked: Asked) -> Rows:
    """Replies to MT-Bench's questions, one at a time, with speculation.

    Generation memory is the most a process is resident in while it replies, less what it was
    resident in when the model was loaded. Unconstrained is f16 keys and values, 64 nodes, and keys
    and values of the whole context reserved before the first reply, as engines do that allocate
    their cache at the start. Runs of all budgets take turns, a process each.
    """
    picture = Picture(asked.plot) if asked.plot else None
    tables = []
    task = {
        "questions": specmemo.questions(asked.file, asked.questions),
        "tokens": asked.tokens,
        "context": asked.context,
    }
    for model in map(str, asked.models):
        found = list(specmemo.measure(model, task, asked.steps, asked.rounds))
        tables.append(found)
        free = found[0]
        for row in found:
            speeds = Spread(row["tokens_per_second"], row["slowest"], row["fastest"])
            yield {
                "model": row["model"],
                "budget": format_size(row["budget_bytes"]) if row["budget_bytes"] else "none",
                "peak": format_size(row["peak_bytes"]),
                "generation": format_size(row["generation_bytes"]),
                "less": f"{1 - row['generation_bytes'] / free['generation_bytes']:.0%}",
                "tokens/s": speeds,
                "speed": row["tokens_per_second"] / free["tokens_per_second"],
                "context": row["context"],
                "KV": row["kv_type"],
                "nodes": row["max_nodes"],
            }
    if picture:
        specmemo.draw(picture, tables)


if __name__ == "__main__":
    script.run()
