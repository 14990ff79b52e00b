"""EdgeSpec and llama.cpp side by side on the same file, in one run, taking turns.

    python benchmarks/peer.py MODEL... [--context 256] [--threads 2] [--rounds 7] [--json]

For each model: T(n), the time of one forward pass over n tokens on top of the context, with logits
for all of them; plain decoding in tokens a second, greedy, no speculation; prefill of 512 tokens
up to the first logits. llama.cpp runs in a process of its own (llama-cpp-python's low-level API,
f16 KV, the same number of threads), and each engine waits while the other computes. Every figure is
a median over the rounds with the lowest and highest beside it. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.backends.base import TokenTree
from edgespec.bench.child import PeerError
from edgespec.bench.curve import pass_seconds
from edgespec.bench.llamacpp import LlamaProcess
from edgespec.memory.hardware import hardware
from edgespec.models.file import ModelFile

SIZES = (1, 2, 4, 8, 16)
PREFILL_TOKENS = 512
DECODE_TOKENS = 48
_PAUSE_S = 0.02
"""For the other engine's waiting threads to go to sleep."""


class Ours:
    """EdgeSpec's native target with the same few questions the peer answers."""

    def __init__(self, model: Path, threads: int, room: int) -> None:
        self.engine = edgespec.load(model, threads=threads, context=room, backend="native")
        self.target = self.engine._target  # the one the engine decodes with

    def forward(self, n: int, past: int) -> list[float]:
        self._fill(past)
        return pass_seconds(self.target, n)

    def prefill(self, n: int) -> list[float]:
        tokens = _tokens(n, self.target.spec.vocab_size)
        self.target.truncate(0)

        def work() -> None:
            self.target.prefill(tokens[:-1])
            self.target.forward(TokenTree.chain(tokens[-1:]))

        return [_timed(work)]

    def decode(self, n: int, past: int) -> list[float]:
        prompt = _tokens(past, self.target.spec.vocab_size)
        self.target.truncate(0)
        reply = self.engine.generate(
            prompt, max_tokens=n, temperature=0.0, speculation=False, ignore_eos=True
        )
        return [n / reply.stats.tokens_per_second]

    def _fill(self, past: int) -> None:
        self.target.truncate(0)
        self.target.prefill(_tokens(past, self.target.spec.vocab_size))


def _tokens(n: int, vocab_size: int) -> list[int]:
    return [3 + (37 * i + 5) % (vocab_size - 3) for i in range(n)]


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(model: Path, threads: int, past: int, rounds: int) -> dict[str, Any]:
    """All measurements of one model: name of the measure -> engine -> seconds."""
    room = max(past + max(*SIZES, DECODE_TOKENS), PREFILL_TOKENS) + 1
    with LlamaProcess(model, threads, room) as theirs:
        ours = Ours(model, threads, room)
        engines: dict[str, Any] = {"edgespec": ours, "llama.cpp": theirs}
        questions: dict[str, Callable[[Any], list[float]]] = {
            **{f"T({n})": lambda engine, n=n: engine.forward(n, past) for n in SIZES},
            f"decode {DECODE_TOKENS}": lambda engine: engine.decode(DECODE_TOKENS, past),
            f"prefill {PREFILL_TOKENS}": lambda engine: engine.prefill(PREFILL_TOKENS),
        }
        seconds: dict[str, dict[str, list[float]]] = {
            name: {engine: [] for engine in engines} for name in questions
        }
        for number in range(rounds + 1):
            order = list(engines) if number % 2 else list(engines)[::-1]
            for name, ask in questions.items():
                for engine in order:
                    time.sleep(_PAUSE_S)
                    measured = ask(engines[engine])
                    if number:  # the first round warms both up
                        seconds[name][engine] += measured
        read_bytes = bytes_per_pass(ours.engine.file)
        ours.engine.close()
        return {
            "model": model.name,
            "read_bytes": read_bytes,
            "llama_build": theirs.build,
            "seconds": seconds,
        }


def bytes_per_pass(file: ModelFile) -> int:
    """Bytes of the weights a forward pass reads: all but the embedding rows it does not need."""
    sizes = {name: info.size_bytes for name, info in file.tensors.items()}
    if "output.weight" in sizes:
        del sizes["token_embd.weight"]
    return sum(sizes.values())


def rows(found: dict[str, Any]) -> list[list[str]]:
    """The table of one model, its header first."""
    header = ["", "EdgeSpec", "low-high", "llama.cpp", "low-high", "ratio", "GB/s"]
    lines = [header]
    for name, engines in found["seconds"].items():
        ours, theirs = engines["edgespec"], engines["llama.cpp"]
        if name.startswith("T("):
            cells = [*_milliseconds(ours), *_milliseconds(theirs)]
            rates = [found["read_bytes"] / statistics.median(side) / 1e9 for side in (ours, theirs)]
            speed = f"{rates[0]:.1f} / {rates[1]:.1f}"
        else:
            count = int(name.split()[1])
            cells = [*_rate(count, ours), *_rate(count, theirs)]
            speed = ""
        faster = statistics.median(theirs) / statistics.median(ours)
        lines.append([name, *cells, f"{faster:.2f}x", speed])
    return lines


def _milliseconds(seconds: Sequence[float]) -> tuple[str, str]:
    low, high = min(seconds) * 1e3, max(seconds) * 1e3
    return f"{statistics.median(seconds) * 1e3:.2f} ms", f"{low:.2f}-{high:.2f}"


def _rate(count: int, seconds: Sequence[float]) -> tuple[str, str]:
    low, high = count / max(seconds), count / min(seconds)
    return f"{count / statistics.median(seconds):.1f} tok/s", f"{low:.1f}-{high:.1f}"


def ratios(found: dict[str, Any]) -> str:
    """The shapes of both curves, and our curve in units of the peer's single token."""
    medians = {
        side: {n: statistics.median(found["seconds"][f"T({n})"][side]) for n in SIZES}
        for side in ("edgespec", "llama.cpp")
    }
    lines = []
    for side, curve in medians.items():
        shape = "  ".join(f"n={n}: {curve[n] / curve[1]:.2f}" for n in SIZES)
        lines.append(f"T(n)/T(1), {side}:  {shape}")
    single = medians["llama.cpp"][1]
    shape = "  ".join(f"n={n}: {medians['edgespec'][n] / single:.2f}" for n in SIZES)
    return "\n".join([*lines, f"EdgeSpec's T(n) / llama.cpp's T(1):  {shape}"])


def machine() -> str:
    """What this was measured on."""
    cpu = hardware()
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    packages = ("numpy", "numba", "llvmlite", "llama-cpp-python")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{cpu.cpu_name}, {cpu.physical_cores} cores{load}; "
        f"EdgeSpec {edgespec.__version__}, {versions}, Python {sys.version.split()[0]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--context", type=int, default=256, help="tokens already in the cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.context < 1 or options.rounds < 1:
        parser.error("--context and --rounds start at 1")
    found = [
        compare(model, options.threads, options.context, options.rounds) for model in options.models
    ]
    if options.json:
        print(json.dumps({"machine": machine(), "models": found}))
        return
    print(f"{machine()}\n{options.threads} threads, context {options.context}, f16 KV, ", end="")
    print(f"{options.rounds} rounds taking turns; medians; ratio: llama.cpp's time / EdgeSpec's")
    for result in found:
        size = result["read_bytes"] / 1e6
        print(f"\n{result['model']}, {size:.0f} MB of weights read per pass")
        print(f"llama.cpp: {result['llama_build']}")
        table = rows(result)
        widths = np.max([[len(cell) for cell in row] for row in table], axis=0)
        for row in table:
            print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
        print(ratios(result))


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.exit(str(error))
