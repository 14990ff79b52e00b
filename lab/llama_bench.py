"""EdgeSpec beside builds of `llama-bench`, ik_llama.cpp's for one, in turns.

    python -m lab.llama_bench MODEL... --bench "PATH/llama-bench -fa 1" [--bench "... -rtr 1"]
        [--context 0] [--nodes 4,8] [--rounds 5]

Each round runs every `llama-bench` as a process of its own, with its options, and in between
EdgeSpec: prefill of 512 tokens, passes over a few tokens, and plain decoding of 32 tokens, all in
tokens a second. A context is filled before decoding alone, and asked of llama-bench by `-gp`, which
ik_llama.cpp's knows. llama-bench computes logits for the last token of a pass, EdgeSpec for all;
the ratio is to the best build in that cell.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path

from edgespec.models.registry import resolve
from edgespec.system.child_process import PeerError
from lab.harness import MODELS, Asked, Rows, Script, Spread, option, rounds
from lab.peer_report import PREFILL_TOKENS
from lab.peers import Ours

DECODED = 32
Cells = dict[str, float]
"""Tokens a second by what was asked."""
script = Script(__doc__)


@script.command(
    MODELS,
    option("--bench", action="append", default=[], help="a command line; once for each build"),
    option("--context", type=int, default=0),
    option("--nodes", default="4,8", help="tokens in a pass, by commas"),
    option("--threads", type=int, default=2),
    rounds(5),
)
def beside(asked: Asked) -> Rows:
    """Tokens a second of each engine, cell by cell."""
    nodes = [int(count) for count in asked.nodes.split(",")]
    for model in map(resolve, asked.models):
        room = max(asked.context + DECODED, PREFILL_TOKENS) + 1
        ours = Ours(model, asked.threads, room)
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for turn in range(asked.rounds + 1):
            cells = {"EdgeSpec": _ours(ours, nodes, asked.context)}
            for command in asked.bench:
                cells[command] = _theirs(command, model, nodes, asked)
            for engine, own in cells.items():
                for cell, rate in own.items() if turn else ():
                    found[cell][engine].append(rate)
        ours.engine.close()
        for cell, engines in found.items():
            names = {command: Path(command.split()[0]).name for command in asked.bench}
            medians = {engine: statistics.median(rates) for engine, rates in engines.items()}
            best = max((medians[command] for command in asked.bench), default=float("nan"))
            row = {
                "model": model.name,
                "tokens/s": cell,
                "EdgeSpec": Spread.of(engines["EdgeSpec"]),
            }
            for place, command in enumerate(asked.bench, 1):
                row[f"{place}: {names[command]}"] = Spread.of(engines[command])
            yield row | {"/ the best": medians["EdgeSpec"] / best}


def _ours(ours: Ours, nodes: list[int], context: int) -> Cells:
    cells = {f"prefill {PREFILL_TOKENS}": PREFILL_TOKENS / ours.prefill(PREFILL_TOKENS)[0]}
    for count in nodes:
        cells[f"{count} tokens"] = count / statistics.median(ours.forward(count, 1))
    return cells | {"decoding": DECODED / ours.decode(DECODED, context)[0]}


def _theirs(command: str, model: Path, nodes: list[int], asked: Asked) -> Cells:
    """What a llama-bench says. Raises PeerError with the end of its output where it fails."""
    prompts = ",".join(map(str, [PREFILL_TOKENS, *nodes]))
    decoding = (
        ["-gp", f"{asked.context},{DECODED}", "-n", "0"] if asked.context else ["-n", str(DECODED)]
    )
    words = [*shlex.split(command), "-m", str(model), "-t", str(asked.threads), "-p", prompts]
    done = subprocess.run(
        [*words, *decoding, "-r", "1", "-o", "json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PeerError(f"{command} ended with {done.returncode}: {done.stderr[-300:]}")
    cells: Cells = {}
    for test in json.loads(done.stdout):
        if test["n_gen"]:
            cells["decoding"] = test["avg_ts"]
        else:
            count = test["n_prompt"]
            cells[f"prefill {count}" if count == PREFILL_TOKENS else f"{count} tokens"] = test[
                "avg_ts"
            ]
    return cells


if __name__ == "__main__":
    script.run()
