"""What GPUs that llama.cpp finds bring on this machine.

    python -m lab.gpu [MODEL...] --markdown [--vram 100%] [--threads N] [--rounds 5] [--tokens 64]

One command for a machine that has a GPU; without one it says how to build llama-cpp-python for it.
Three tables: the devices; passes of 1 and 8 nodes, a prompt and replies by the native backend, by
llama.cpp on the processor, and with as many layers on GPUs as `--vram` holds; and what `auto`
expects of each and takes. Each row opens the whole file in a process of its own. A text that
speculation changed is a failure.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import edgespec
from edgespec.backends.llamacpp import library
from edgespec.backends.llamacpp.remote import devices
from edgespec.backends.pass_times import time_pass
from edgespec.system.size import format_size
from edgespec.tools.bench.spread import Spread
from lab.harness import THREADS, Asked, Row, Rows, Script, in_process, option, rounds, tokens

_SIZES = (1, 8)
_PROMPT = 256
_TEXT = "List the months of the year with their number of days, one on each line."
script = Script(__doc__)


@script.command(
    option("models", nargs="*", metavar="MODEL", help="files or names; the bundled one if none"),
    THREADS,
    rounds(5),
    tokens(64),
    option("--vram", default="100%", help="of the GPUs, at most"),
    option("--context", type=int, default=1024),
)
def compare(asked: Asked) -> Rows:
    """Devices, then one row for each model and place of its layers, then `auto`'s candidates."""
    yield from _devices()
    if not devices.gpus():
        script.note(f"no GPU is found; build llama-cpp-python for it: {devices.GPU_INSTALL}")
    ways = [{"backend": "native"}]
    if not library.missing():
        ways.append({"backend": "llamacpp", "vram": "0"})
    if devices.gpus():
        ways.append({"backend": "llamacpp", "vram": asked.vram})
    models = asked.models or [None]
    for model in models:
        for way in ways:
            sizes = (asked.threads, asked.context, asked.rounds, asked.tokens)
            found = in_process(measure, model, way, *sizes)
            if "error" in found:
                script.check(False, f"{model} with {way}: {found['error']}")
                continue
            script.check(found.pop("same"), f"{found['layers']}: speculation keeps the text")
            yield {"model": model or "bundled"} | {
                name: _told(value) for name, value in found.items()
            }
    for model in models:
        made = edgespec.plan(model, threads=asked.threads, context=asked.context)
        for one in made.candidates:
            yield {
                "model of auto": model or "bundled",
                "layers": one.backend,
                "tokens/s expected": one.tokens_per_second,
                **{f"T({size}), ms": dict(one.pass_ms).get(size) for size in _SIZES},
                "basis": one.basis,
                "verdict": one.verdict,
            }


def measure(
    model: str | None,
    way: dict[str, Any],
    threads: int | None,
    context: int,
    num_rounds: int,
    num_tokens: int,
) -> dict[str, Any]:
    """What one way of running a model takes, rounds that alternate; the first one warms up."""
    with edgespec.load(model, threads=threads, context=context, **way) as engine:
        target, plan = engine.scheduler.target, engine.plan
        times: dict[str, list[float]] = {}
        speeds: dict[str, list[float]] = {}
        ids = np.arange(_PROMPT, dtype=np.int32) * 37 % 1000 % target.spec.vocab_size
        options: dict[str, Any] = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        replies = {"plain": False, "speculation": True}
        texts = set()
        for _ in range(num_rounds + 1):
            target.own.truncate(0)
            for size in _SIZES:
                if size <= plan.max_nodes:
                    times.setdefault(f"T({size}), ms", []).append(1e3 * time_pass(target, size))
            start = time.perf_counter()
            target.own.prefill(ids)
            time_pass(target, 1)  # until its logits are there, a device may be at work
            seconds = time.perf_counter() - start
            speeds.setdefault(f"prompt of {_PROMPT}, tokens/s", []).append(_PROMPT / seconds)
            target.own.truncate(0)
        for _ in range(num_rounds + 1):
            for name, speculation in replies.items():
                reply = engine.generate(_TEXT, speculation=speculation, **options)
                rate = reply.stats.tokens_per_second
                speeds.setdefault(f"{name}, tokens/s", []).append(rate)
                texts.add(tuple(reply.token_ids))
        return {
            "layers": plan.label,
            **{name: found[1:] for name, found in (times | speeds).items()},
            "on devices": format_size(sum(part.total_bytes for part in plan.devices)),
            "planned here": format_size(plan.planned_bytes),
            "peak here": format_size(reply.stats.peak_memory_bytes),
            "same": len(texts) == 1,
        }


def _told(value: Any) -> Any:
    return Spread.of(value) if isinstance(value, list) else value


def _devices() -> list[Row]:
    return [
        {
            "device": one.name,
            "kind": one.kind,
            "what its driver calls it": one.description,
            "free": format_size(one.free_bytes),
            "of": format_size(one.total_bytes),
            "memory": "its own" if devices.own_memory(one) else "this machine's",
        }
        for one in (() if library.missing() else devices.local_devices())
    ]


if __name__ == "__main__":
    script.run()
