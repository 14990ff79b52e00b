"""Does a model beyond its budget run as fast as predicted, inside the budget, with the same text?

    python -m lab.streaming MODEL... [--shares 0.33,0.5,0.7] [--seeds 1,2] [--cgroup] [--peer]
        [--out F]

Each run is `edgespec run` in a process of its own (with --cgroup in a control group whose limit is
the budget), with a share of the file's bytes as its budget; some with drafts, some without. Its
text is compared with that of a run that has all weights in memory. Files of random weights
(`lab.shapes`) tell time and bytes, not how unevenly trained routers use experts.

With --peer, llama.cpp reads each run's tokens after it, from the mapped file, in a group with the
same limit. Its tokens take from the first one on, as ours do; the median is of single tokens.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.models.open_model import open_model
from edgespec.system.size import MIB
from lab.harness import (
    MODELS,
    THREADS,
    Asked,
    Records,
    Row,
    Rows,
    Script,
    numbers,
    option,
    tokens,
)
from tests.support.budget_runs import ROOT, held_bytes
from tests.support.control_group import ControlGroup

script = Script(__doc__)
PROMPT = "The cat sat by the river and told a story about the sea, number {}."
_FORETOLD = re.compile(r"about ([\d.]+) tokens/s without drafts")
WITHIN = 0.2
"""Of a prediction that is called right."""


def _shares(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


@script.command(
    MODELS,
    option("--shares", type=_shares, default=[0.33, 0.5, 0.7], help="budget / size of the file"),
    option("--seeds", type=numbers, default=[1, 2]),
    tokens(12),
    option("--cgroup", action="store_true"),
    option("--peer", action="store_true", help="llama.cpp, mapped, on the same tokens"),
    THREADS,
    option("--out", type=Path),
)
def runs(asked: Asked) -> Rows:
    """Prediction, speed, memory and text of each run. Exit code 1: over the budget, or another
    text."""
    records, over, other, failed, errors = Records(asked.out), 0, 0, 0, []
    for model in map(str, asked.models):
        size = os.path.getsize(model)
        for seed in asked.seeds:
            whole = records.get(
                (model, "whole", seed, asked.tokens),
                partial(run, model, "auto", seed, asked.tokens, False, False),
            )
            for share in asked.shares:
                for drafts in (False, True):
                    budget = int(share * size) // MIB * MIB
                    found = records.get(
                        (model, budget, seed, asked.tokens, drafts, asked.cgroup),
                        partial(run, model, budget, seed, asked.tokens, drafts, asked.cgroup),
                    )
                    if "error" in found:
                        failed += 1
                        script.note(f"{Path(model).name}, {share:g}: {found['error']}")
                        continue
                    over += found["peak_bytes"] > budget or found.get("kills", 0) > 0
                    other += found["text"] != whole["text"]
                    if not drafts and found["predicted"]:
                        errors.append(found["tokens_per_second"] / found["predicted"] - 1)
                    row = _row(Path(model).stem, seed, drafts, found)
                    if asked.peer:
                        row |= {"llama.cpp": "", "its median token": ""}
                    if asked.peer and not drafts:
                        threads = asked.threads or os.cpu_count() or 1
                        key = (model, budget, seed, asked.tokens, "llama.cpp", asked.cgroup)
                        row |= _peer_row(
                            records.get(
                                key, partial(run_peer, model, budget, found, threads, asked.cgroup)
                            )
                        )
                    yield row
    right = sum(abs(error) <= WITHIN for error in errors)
    if errors:
        script.note(
            f"real / predicted without drafts: median {statistics.median(errors) + 1:.2f}, "
            f"{min(errors) + 1:.2f} to {max(errors) + 1:.2f}; {right} of {len(errors)} within 20 %"
        )
    script.check(not over, f"{over} runs over their budgets")
    script.check(not other, f"{other} texts differ from those with all weights in memory")
    script.check(not failed, f"{failed} runs failed")


def run(
    model: str, memory: int | str, seed: int, count: int, drafts: bool, in_group: bool
) -> dict[str, Any]:
    """What came of one run; with "error" where it failed."""
    command = [sys.executable, "-m", "edgespec", "run", "-m", model, "--memory", str(memory),
               "--seed", str(seed), "--temperature", "0.8", "-n",
               str(count), "--context", "1024", "--ignore-eos", "--json", "--raw",
               *([] if drafts else ["--no-speculation"]),
               *([] if isinstance(memory, int) else ["--backend", "native"]),
               PROMPT.format(seed)]  # fmt: skip
    with ExitStack() as opened:
        group = None
        if in_group and isinstance(memory, int):
            group = opened.enter_context(ControlGroup(memory))
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=os.environ | {"PYTHONPATH": str(ROOT), "EDGESPEC_HISTORY": "0"},
            preexec_fn=group.enter if group else None,
        )  # fmt: skip
        most = 0
        while True:
            try:
                out, said = process.communicate(timeout=0.02)
                break
            except subprocess.TimeoutExpired:
                most = max(most, held_bytes(process.pid))
        if process.returncode:
            return {"error": (said.strip().splitlines() or [f"exit {process.returncode}"])[-1]}
        told = json.loads(out)
        plan, stats = told["plan"], told["stats"]
        foretold = _FORETOLD.search(" ".join(plan["reasons"]))
        return {
            "text": told["text"],
            "token_ids": told["token_ids"],
            "prompt": PROMPT.format(seed),
            "budget_bytes": plan["budget_bytes"],
            "planned_bytes": plan["planned_bytes"],
            "peak_bytes": max(most, stats["peak_memory_bytes"]),
            "predicted": float(foretold[1]) if foretold else 0.0,
            "tokens_per_second": stats["tokens_per_second"],
            "tokens_per_step": stats["tokens_per_step"],
            "disk_bytes_per_token": stats["disk_bytes_per_token"],
            **(group.facts() if group else {}),
        }


def run_peer(
    model: str, memory: int, ours: dict[str, Any], threads: int, in_group: bool
) -> dict[str, Any]:
    """Seconds that each token of our run takes llama.cpp; with "error" where it failed."""
    with open_model(Path(model)) as file:
        prompt = file.tokenizer.encode(ours["prompt"])
    request = {"model": model, "threads": threads, "context": 1024, "prompt": prompt,
               "reply": ours["token_ids"]}  # fmt: skip
    with ExitStack() as opened:
        group = opened.enter_context(ControlGroup(memory)) if in_group else None
        done = subprocess.run(
            [sys.executable, "-m", "lab.mapped_llama"], input=json.dumps(request), text=True,
            capture_output=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
            preexec_fn=group.enter if group else None,
        )  # fmt: skip
        if done.returncode:
            return {"error": f"exit {done.returncode}: {done.stderr[-200:]}"}
        return {"seconds": json.loads(done.stdout), **(group.facts() if group else {})}


def _peer_row(found: dict[str, Any]) -> Row:
    if "error" in found:
        return {"llama.cpp": found["error"]}
    seconds = found["seconds"]
    return {
        "llama.cpp": f"{len(seconds) / sum(seconds):.3g}",
        "its median token": f"{1 / statistics.median(seconds):.3g}",
    }


def _row(name: str, seed: int, drafts: bool, found: dict[str, Any]) -> Row:
    return {
        "model": name,
        "seed": seed,
        "drafts": "yes" if drafts else "no",
        "budget": f"{found['budget_bytes'] / MIB:.0f}",
        "planned": f"{found['planned_bytes'] / MIB:.0f}",
        "peak": f"{found['peak_bytes'] / MIB:.0f}",
        "charged": f"{found.get('most_charged_bytes', 0) / MIB:.0f}",
        "predicted": f"{found['predicted']:.3g}",
        "tokens/s": f"{found['tokens_per_second']:.3g}",
        "a pass": f"{found['tokens_per_step']:.2f}",
        "MiB a token": f"{found['disk_bytes_per_token'] / MIB:.0f}",
    }


if __name__ == "__main__":
    script.run()
