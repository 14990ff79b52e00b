"""Runs inside a memory budget: chats of ten turns that outgrow their context, a process each.

Every run loads a model, talks for ten turns that hold 1.6 contexts, and tells the most it was
resident in: VmHWM, or more if the process and its children held more at one time (sampled). Budgets
go from the smallest, in whole MiB, that a plan is made for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import edgespec
from edgespec.system.hardware import snapshot
from edgespec.system.resident_memory import peak_resident_bytes
from edgespec.system.size import MIB
from tests.support.control_group import ControlGroup

ROOT = Path(__file__).parents[2]
TURNS = 10
REPLY_TOKENS = 10
CONTEXTS = 1.6
"""Of text, in all turns together."""


def smallest_budget(model: str, backend: str, context: int | None) -> int:
    """The fewest whole MiB, in bytes, that there is a plan for in a process like this one."""
    low, high = 0, snapshot().reachable_bytes // MIB
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
    """Talk beyond the context of one engine; what was planned, what was held, what was dropped."""
    with edgespec.load(model, memory=budget, backend=backend, context=context) as engine:
        plan = engine.plan
        dropped, rate = talk(engine)
        return {
            "budget_bytes": budget,
            "planned_bytes": plan.planned_bytes,
            "peak_bytes": peak_resident_bytes(),
            "context": plan.context_length,
            "kv_type": plan.kv_type,
            "max_nodes": plan.max_nodes,
            "dropped_tokens": dropped,
            "tokens_per_second": rate,
        }


def talk(engine: edgespec.Engine) -> tuple[int, float]:
    """Ten turns; returns the tokens that were dropped on the way, and the last reply's speed.

    A model without a chat template continues one text, to which each turn adds.
    """
    room = engine.plan.context_length
    reply_tokens = min(REPLY_TOKENS, room // 16)
    asked = int(CONTEXTS * room) // TURNS - reply_tokens
    options: dict[str, Any] = {"max_tokens": reply_tokens, "ignore_eos": True, "seed": 1}
    words = "The cat sat by the river and told a story about the sea. "
    text = words * (asked // max(1, len(engine.tokenizer.encode(words, add_bos=False))) + 1)
    chat = engine.chat() if engine.file.chat_template else None
    seen: list[int] = engine.tokenizer.encode("")
    dropped, rate = 0, 0.0
    for turn in range(TURNS):
        if chat is not None:
            policy = "drop-turns" if turn % 2 else "sliding"
            stats = chat.send(f"{turn}. {text}", on_overflow=policy, **options).stats
        else:
            more = engine.tokenizer.encode(f"{turn}. {text}", add_bos=False)[:asked]
            stream = engine.stream([*seen, *more], on_overflow="sliding", **options)
            for _ in stream:
                pass
            seen, stats = stream.seen_ids, stream.reply.stats
        dropped += stats.dropped_tokens
        rate = stats.tokens_per_second
    return dropped, rate


def _serve(task: str, model: str, arguments: Sequence[str]) -> None:
    backend, context = arguments[0], int(arguments[-1]) or None
    if task == "smallest":
        print(json.dumps(smallest_budget(model, backend, context)))
    else:
        print(json.dumps(run_once(model, backend, int(arguments[1]), context)))


def child(
    task: str,
    model: str,
    *arguments: object,
    cache: str | None = None,
    group: ControlGroup | None = None,
) -> Any:
    """One task in a fresh process: its answer, or the sentence it ended with.

    A run's answer has the most that the process and its children were seen to hold together.
    """
    environment = (
        os.environ | {"PYTHONPATH": str(ROOT)} | ({"EDGESPEC_CACHE": cache} if cache else {})
    )
    command = [sys.executable, "-m", __spec__.name, task, model, *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=group.enter if group else None,
    )
    most = 0
    while process.poll() is None:
        most = max(most, held_bytes(process.pid))
        time.sleep(0.004)
    out, errors = process.communicate()
    if process.returncode:
        line = (errors.strip().splitlines() or ["no message"])[-1]
        return {"error": f"exit code {process.returncode}: {line}"}
    answer = json.loads(out)
    if isinstance(answer, dict):
        answer["peak_bytes"] = max(answer["peak_bytes"], most)
    return answer


def held_bytes(pid: int) -> int:
    """Resident bytes of a process and its children now."""
    held = 0
    for each in [pid, *_children(pid)]:
        try:
            pages = Path(f"/proc/{each}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            continue
        held += int(pages) * os.sysconf("SC_PAGE_SIZE")
    return held


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(number) for number in text.split()]


def measure(
    model: str, backend: str, steps: Sequence[float], context: int, *, cold: bool, cgroup: bool
) -> Iterator[dict[str, Any]]:
    """One row for each budget."""
    with tempfile.TemporaryDirectory() as folder:
        if not cold:  # only a first start compiles, so one comes before all others
            child("run", model, backend, snapshot().reachable_bytes // 2, 256)
        cache = str(Path(folder, "smallest")) if cold else None
        smallest = child("smallest", model, backend, context, cache=cache)
        for step in steps:
            row = {
                "model": Path(model).name, "backend": backend, "context_asked": context,
                "step": step, "cold": cold, "cgroup": cgroup,
            }  # fmt: skip
            if isinstance(smallest, dict):
                yield row | smallest
                continue
            budget = -(-int(smallest * step) // MIB) * MIB
            cache = str(Path(folder, str(step))) if cold else None
            if cgroup:
                with ControlGroup(budget) as group:
                    found = child("run", model, backend, budget, context, cache=cache, group=group)
                    found |= group.facts()
            else:
                found = child("run", model, backend, budget, context, cache=cache)
            yield row | {"budget_bytes": budget} | found


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], sys.argv[3:])
