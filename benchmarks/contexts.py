"""What a long context costs: T(n) by tokens in the cache, with each type of keys and values.

    python benchmarks/contexts.py MODEL... [--contexts 256,1024,4096,8000] [--nodes 1,4,8]

All caches are open at once and are filled further and further; at each context they take turns.
Medians with the lowest and the highest beside them. "GB/s" is what a pass reads more than at the
first context, by the time it takes more: how fast keys and values are gone through.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parity import open_target
from edgespec.backends.base import Target
from edgespec.backends.passes import TokenTree
from edgespec.memory.plan.native_sizes import KV_BLOCK, kv_bytes
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.models.open_model import open_model
from edgespec.tools.bench.machine import Machine

Times = dict[tuple[str, int], list[float]]


def fill(target: Target, length: int) -> None:
    """Commit tokens up to this many."""
    target.own.prefill(np.arange(target.own.length, length, dtype=np.int32) * 37 % 1000 + 10)


def measure(targets: dict[str, Target], nodes: Sequence[int], rounds: int) -> Times:
    """Seconds of passes over chains of n tokens, for each KV type and n; the first round warms."""
    found: Times = {(kind, n): [] for kind in targets for n in nodes}
    for turn in range(rounds + 1):
        for n in nodes:
            for kind, target in targets.items():
                start = time.perf_counter()
                target.own.forward(TokenTree.chain(list(range(10, 10 + n))))
                if turn:
                    found[kind, n].append(time.perf_counter() - start)
    return found


def rows(path: Path, options: argparse.Namespace) -> Iterator[str]:
    """The table of one model, line by line as it is measured."""
    contexts, nodes = sorted(options.contexts), options.nodes
    most = contexts[-1] + max(nodes)
    first: dict[tuple[str, int], tuple[float, float]] = {}
    with ExitStack() as stack:
        file = stack.enter_context(open_model(path))
        targets = {
            kind: stack.enter_context(
                open_target(file, "native", most, options.threads, max(nodes), kind)
            )
            for kind in KV_TYPES
        }
        for context in contexts:
            for target in targets.values():
                fill(target, context)
            times = measure(targets, nodes, options.rounds)
            for kind in KV_TYPES:
                read = kv_bytes(file.spec, KV_BLOCK, kind) / KV_BLOCK * context / 1e9
                cells = [f"{context:>7}  {kind:>4}  {read * 1000:>6.1f} MB"]
                for n in nodes:
                    seconds = times[kind, n]
                    before, began = first.setdefault((kind, n), (read, statistics.median(seconds)))
                    cells.append(_cell(seconds, read - before, began))
                yield "   ".join(cells)


def _cell(seconds: list[float], more: float, began: float) -> str:
    """Milliseconds with their spread, and GB/s of `more` gigabytes beyond `began` seconds."""
    middle, low, high = (f(seconds) * 1000 for f in (statistics.median, min, max))
    longer = middle / 1000 - began
    rate = f"{more / longer:>5.1f} GB/s" if more > 0 < longer else ""
    return f"{middle:>7.2f} ms {f'({low:.2f}-{high:.2f})':<15} {rate:<10}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--contexts", type=_numbers, default=[256, 1024, 4096, 8000])
    parser.add_argument("--nodes", type=_numbers, default=[1, 4, 8])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    machine = Machine.here()
    print(f"{machine.processor}, {machine.cores} cores, load average {machine.load_average:.1f}")
    for path in options.models:
        print(f"{path.name}, {options.threads} threads, {options.rounds} rounds taking turns")
        head = "".join(f"{f'T({n})':>11}{'':29}" for n in options.nodes)
        print(f"context    KV       bytes{head}".rstrip())
        for row in rows(path, options):
            print(row.rstrip(), flush=True)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
