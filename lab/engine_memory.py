"""Does a plan for another engine tell what its session holds? Fixed settings, a process each.

    python benchmarks/engine_memory.py MODEL... [--backend llamacpp] [--contexts 512,4096]
                                       [--kv f16,int8] [--nodes 16] [--texts 1,2,4] [--items]

Every run loads a model with these settings and a budget that leaves room, takes a turn of a chat
where the model has a template, fills the context of every text, replies with speculation included,
and then scores the widest tree on top of each: that is all a plan can be for. Settings that a model
does not take are told and left out. `peak` is VmHWM; `rest` is what is planned beyond it, in MiB.
--items prints the plan, and what was resident after each stage. Exit code 1: a peak was over its
plan.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
import edgespec.memory
from edgespec.backends.base import TokenTree
from edgespec.system.resident_memory import peak_resident_bytes, resident_bytes
from edgespec.system.size import MIB

REPLY_TOKENS = 32
THREADS = 1
"""More would wait for each other where other programs run."""


def run_once(model: str, backend: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Plan and peak of one session, and what was resident after each of its stages."""
    with edgespec.load(model, backend=backend, threads=THREADS, **settings) as engine:
        stages = {"loaded": resident_bytes()}
        if engine.file.chat_template:
            with engine.chat() as chat:
                chat.send("Hello.", max_tokens=4)
        fill(engine)
        stages["filled"] = resident_bytes()
        branch(engine)
        stages["branched"] = resident_bytes()
        return {
            "planned": engine.plan.planned_bytes,
            "peak": peak_resident_bytes(),
            "stages": stages,
            "items": {item.name: item.size_bytes for item in engine.plan.footprint.items},
        }


def fill(engine: edgespec.Engine) -> None:
    """Write a reply at the end of every text's context; no two texts begin alike."""
    words = "The cat sat by the river and told a story about the sea, again and again. "
    line = engine.tokenizer.encode(words, add_bos=False)
    prompt = (line * (engine.plan.context_length // len(line) + 1))[: _room(engine)]
    prompts = [[number + 5, *prompt] for number in range(engine.plan.sequences)]
    options: dict[str, Any] = {"max_tokens": REPLY_TOKENS, "ignore_eos": True, "seed": 1}
    if len(prompts) > 1:
        engine.generate_batch(prompts, **options)
    else:
        engine.generate(prompts[0], **options)


def _room(engine: edgespec.Engine) -> int:
    """Tokens of a prompt that leave room for its first, a reply and a tree."""
    return engine.plan.context_length - 1 - REPLY_TOKENS - engine.plan.max_nodes


def branch(engine: edgespec.Engine) -> None:
    """Score a root with as many children as a pass takes, on top of each text."""
    width = engine.plan.max_nodes
    tree = TokenTree(np.arange(width, dtype=np.int32), np.zeros(width, np.int16))
    tree.parents[0] = -1
    if not engine._target.capabilities.trees:
        tree = TokenTree.chain(np.arange(width, dtype=np.int32))
    for session in engine.sessions:
        engine._target.forward_batch(((session.sequence, tree),))
        session.sequence.commit([0])


def child(model: str, backend: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The same in a process of its own, or the sentence it ended with."""
    command = [sys.executable, __file__, "--run", model, backend, json.dumps(settings)]
    found = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if found.returncode:
        return {"error": (found.stderr.strip().splitlines() or ["no message"])[-1]}
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def main() -> int:
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(run_once(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--backend", default="llamacpp")
    parser.add_argument("--contexts", default="512,4096")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--nodes", default="16")
    parser.add_argument("--texts", default="1")
    parser.add_argument("--items", action="store_true")
    options = parser.parse_args()
    lists = [options.contexts, options.kv, options.nodes, options.texts]
    choices = itertools.product(*(found.split(",") for found in lists))
    print(f"{'model':<26} {'context':>7} {'KV':>5} {'nodes':>5} {'texts':>5}", end="")
    print(f" {'planned':>9} {'peak':>9} {'ratio':>6} {'rest':>6}")
    # Only a first start compiles, so one comes before all others.
    least = {"context": 256, "kv_type": "f16", "max_nodes": 2, "sequences": 1}
    child(options.models[0], options.backend, least)
    over = runs = close = 0
    for (context, kv_type, nodes, texts), model in itertools.product(choices, options.models):
        settings = {
            "context": int(context), "kv_type": kv_type, "max_nodes": int(nodes),
            "sequences": int(texts),
        }  # fmt: skip
        found = child(model, options.backend, settings)
        name = f"{Path(model).name:<26} {context:>7} {kv_type:>5} {nodes:>5} {texts:>5}"
        if "error" in found:
            print(f"{name}  {found['error']}", flush=True)
            continue
        ratio = found["planned"] / found["peak"]
        runs, over, close = runs + 1, over + (ratio < 1), close + (1 <= ratio <= 1.05)
        numbers = f"{found['planned'] / MIB:>9.1f} {found['peak'] / MIB:>9.1f} {ratio:>6.3f}"
        print(f"{name} {numbers} {(found['planned'] - found['peak']) / MIB:>6.1f}", flush=True)
        if options.items:
            for title in ("items", "stages"):
                told = (f"{key} {size / MIB:.1f}" for key, size in found[title].items() if size)
                print(f"    {title}: {', '.join(told)}")
    print(f"runs={runs} over={over} within 5 %={close}")
    return int(over > 0 or not runs)


if __name__ == "__main__":
    sys.exit(main())
