"""Runs of chance inside a memory budget: what was asked for, and what was held.

Every run is drawn from its number: a model of chance, a backend, drafters, keys and values,
threads, a context, a cache that is warm or empty, a control group or none. The budget is the
smallest that a plan is made for, as the refusal of a smaller one says, times 1 to 1.5; then
`edgespec run` is a process of its own, which is watched from outside.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgespec.drafting.registry import DRAFTERS
from edgespec.memory.plan.sizing import EARLY_EXIT
from edgespec.system.size import MIB
from lab.harness import python_path
from tests.support.budget_runs import held_bytes
from tests.support.control_group import ControlGroup
from tests.support.gguf_models import write_gguf

_LIMIT_S = 240.0
_SAMPLE_S = 0.004
_NEEDS = re.compile(r" needs ([\d.]+) (MiB|GiB) ")
PROMPT = "The cat sat by the river and told a story about the sea, and the cat sat again. "


@dataclass(frozen=True, slots=True)
class Draw:
    """What one run asks for."""

    number: int
    model: dict[str, Any]
    backend: str
    drafters: str
    kv_type: str
    threads: int
    context: int
    empty: bool
    """Whether the cache folder is empty: everything is compiled and measured in this run."""
    group: bool
    step: float
    """The budget, times the smallest."""
    tokens: int
    temperature: float

    @classmethod
    def of(cls, number: int) -> Draw:
        """The same for the same number, on every machine."""
        rng = random.Random(number)
        backend = rng.choice(["native"] * 6 + ["llamacpp"] * 3 + ["onnx"])
        dim = rng.choice([64, 256, 256, 512, 512, 1024])
        heads = dim // rng.choice([16, 32, 64])
        kinds = ["F16", "Q8_0", "Q4_0"] + ["Q4_K", "Q6_K"] * (dim >= 256)
        model = {
            "arch": rng.choice(["llama", "qwen2", "qwen3"]),
            "dim": dim,
            "heads": heads,
            "kv_heads": rng.choice([1, max(1, heads // 2), heads]),
            "layers": rng.randint(2, 8),
            "ffn": dim * rng.choice([1, 2, 4]),
            "vocab": rng.choice([300, 2000, 16000, 32000]),
            "type": "F16" if backend == "onnx" else rng.choice(kinds),
            "tied": rng.random() < 0.3,
            "context": 4096,
            "seed": number,
        }
        names = [*DRAFTERS, *([EARLY_EXIT] if backend == "native" else [])]
        some = ",".join(rng.sample(names, rng.randint(1, 4)))
        kv_types = {"native": ["auto", "f16", "int8", "q4"], "llamacpp": ["auto", "f16", "int8"]}
        if dim // heads < 32:  # llama.cpp's blocks
            kv_types["llamacpp"] = ["auto", "f16", "f16"]
        return cls(
            number,
            model,
            backend,
            rng.choice([some, some, some, "auto", "none"]),
            rng.choice(kv_types.get(backend, ["auto"])),
            rng.choice([1, 2]),
            rng.choice([128, 256, 512, 1024, 2048]),
            rng.random() < 0.15,
            rng.random() < 0.5,
            rng.choice([1.0, 1.0, rng.uniform(1, 1.1), rng.uniform(1.1, 1.5)]),
            rng.randint(8, 64),
            rng.choice([0.0, 0.0, 0.8]),
        )


def run(number: int) -> dict[str, Any]:
    """One run, its draw and what it found, in bytes."""
    drawn = Draw.of(number)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = _run(drawn, Path(folder))
    return asdict(drawn) | found | {"seconds": round(time.monotonic() - begin, 1)}


def is_refused(found: dict[str, Any]) -> bool:
    """Whether a run's own plan needed more than the one before it, by what Python itself holds."""
    return bool(_NEEDS.search(found.get("error", "")))


def row(found: dict[str, Any]) -> dict[str, Any]:
    """What a table shows of a run."""
    model = found["model"]
    peak, budget = found.get("peak_bytes", 0), found.get("budget_bytes", 0)
    shown = {
        "run": found["number"],
        "model": f"{model['arch']} {model['layers']}x{model['dim']} {model['type']}",
        "backend": found["backend"],
        "drafters": found["drafters"],
        "KV": found["kv_type"],
        "threads": found["threads"],
        "context": found["context"],
        "cache": "empty" if found["empty"] else "warm",
        "group": "yes" if "most_charged_bytes" in found else "",
        "budget": budget / MIB,
        "planned": found.get("planned_bytes", 0) / MIB,
        "peak": peak / MIB,
    }
    if is_refused(found):
        return shown | {"told": "refused"}
    return shown | {"told": found.get("error", "OVER" if peak > budget else "")[:100]}


def _run(drawn: Draw, folder: Path) -> dict[str, Any]:
    written = write_gguf(folder / "m.gguf", tokenizer="llama", **drawn.model)
    model = str(written)
    if drawn.backend == "onnx":
        model = str(folder / "onnx")
        done = subprocess.run(
            [sys.executable, "-m", "edgespec", "export", str(written), model],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return {"error": done.stderr.strip()}
    environment = os.environ | {"PYTHONPATH": python_path()}
    if drawn.empty:
        environment["EDGESPEC_CACHE"] = str(folder / "cache")
    else:
        _finished(drawn, model, "auto", environment)  # compiles what this model needs
    refused = _finished(drawn, model, "64MiB", environment).stderr
    needed = _NEEDS.search(refused)
    if needed is None:
        return {"error": (refused.strip().splitlines() or ["not refused"])[-1]}
    least = float(needed[1]) * {"MiB": 1, "GiB": 1024}[needed[2]]
    budget = math.ceil(math.ceil(least) * drawn.step) * MIB
    return {"budget_bytes": budget} | _watched(drawn, model, budget, environment)


def _command(drawn: Draw, model: str, memory: str) -> list[str]:
    command = [sys.executable, "-m", "edgespec", "run", "-m", model, "--memory", memory]
    for name in ("backend", "drafters", "threads", "context"):
        command += [f"--{name}", str(getattr(drawn, name))]
    command += ["--kv-type", drawn.kv_type, "-n", str(drawn.tokens), "--seed", "1"]
    command += ["-t", str(drawn.temperature), "--ignore-eos", "--raw", "--json"]
    return [*command, PROMPT]


def _finished(
    drawn: Draw, model: str, memory: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command = _command(drawn, model, memory)
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def _watched(drawn: Draw, model: str, budget: int, environment: dict[str, str]) -> dict[str, Any]:
    """One process of `edgespec run`, and the most that it and its children held together."""
    group = None
    if drawn.group:
        with suppress(OSError):  # not permitted here: the run counts as one without
            group = ControlGroup(budget).__enter__()
    try:
        process = subprocess.Popen(
            _command(drawn, model, str(budget)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=group.enter if group else None,
        )
        most, end = 0, time.monotonic() + _LIMIT_S
        while process.poll() is None and time.monotonic() < end:
            most = max(most, held_bytes(process.pid))
            time.sleep(_SAMPLE_S)
        process.kill()
        out, errors = process.communicate()
        facts = group.facts() if group else {}
    finally:
        if group:
            group.__exit__()
    if process.returncode:
        line = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return {"error": line, "peak_bytes": most} | facts
    stats = json.loads(out)["stats"]
    peak = max(most, stats["peak_memory_bytes"])
    return {"planned_bytes": stats["planned_memory_bytes"], "peak_bytes": peak} | facts
