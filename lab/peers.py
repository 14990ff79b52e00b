"""EdgeSpec and llama.cpp side by side on the same file, in one run, taking turns.

    python benchmarks/peer.py MODEL... [--context 256,4096] [--threads 2] [--rounds 7] [--json]

For each model: prefill of 512 tokens up to the first logits; then, on top of each context, T(n),
the time of one forward pass over n tokens with logits for all of them, and plain decoding in tokens
a second, greedy, no speculation. llama.cpp runs in a process of its own (llama-cpp-python's
low-level API, f16 KV, the same number of threads), and each engine waits while the other computes.
In every round memory is read in one direction by as many threads, over as many bytes as a pass
reads. Every figure is a median over the rounds with the lowest and highest beside it; goals are
told as met or missed, and nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks import peer_report
from benchmarks.peer_report import DECODE_TOKENS, PREFILL_TOKENS, SIZES
from edgespec.backends.base import TokenTree
from edgespec.backends.native.kernels.codegen import isa
from edgespec.system.child_process import PeerError
from edgespec.system.hardware import snapshot
from edgespec.tools.bench.curve import Work, pass_seconds, timed, tokens
from edgespec.tools.bench.llamacpp import LlamaProcess
from edgespec.tools.bench.loops import multiply_of
from edgespec.tools.bench.machine import Machine, package_version
from edgespec.tools.bench.roofs import Roofs
from edgespec.tools.bench.turns import take_turns

Ask = Callable[[Any], list[float]]
"""Asks one engine; seconds of one turn."""


class Ours:
    """EdgeSpec's native target with the same few questions the peer answers."""

    def __init__(self, model: Path, threads: int, room: int) -> None:
        self.engine = edgespec.load(
            model, threads=threads, context=room, backend="native", max_nodes=max(SIZES)
        )
        self.target = self.engine._target  # the one the engine decodes with

    def forward(self, n: int, past: int) -> list[float]:
        self._fill(past)
        return pass_seconds(self.target, n)

    def prefill(self, n: int) -> list[float]:
        ids = self._tokens(n)
        self.target.truncate(0)

        def work() -> None:
            self.target.prefill(ids[:-1])
            self.target.forward(TokenTree.chain(ids[-1:]))

        seconds = timed(work)
        self.target.truncate(0)
        return [seconds]

    def decode(self, n: int, past: int) -> list[float]:
        self._fill(past)
        return [n / self._generate(past, n)]

    def _fill(self, past: int) -> None:
        """Have these positions in the cache, and no others."""
        if self.target.length < past:
            self._generate(past, 1)
        self.target.truncate(past)

    def _generate(self, past: int, n: int) -> float:
        """Tokens a second of n greedy tokens, the first computed at position `past`."""
        reply = self.engine.generate(
            self._tokens(past + 1),
            max_tokens=n,
            temperature=0.0,
            speculation=False,
            ignore_eos=True,
        )
        return reply.stats.tokens_per_second

    def _tokens(self, n: int) -> list[int]:
        return tokens(0, n, self.target.spec.vocab_size)


def compare(model: Path, threads: int, contexts: list[int], rounds: int) -> dict[str, Any]:
    """All measurements of one model: name of the measure -> engine -> seconds of each round."""
    room = max(max(contexts) + max(*SIZES, DECODE_TOKENS), PREFILL_TOKENS) + 1
    with LlamaProcess(model, threads, room) as theirs:
        ours = Ours(model, threads, room)
        file, plan, used = ours.engine.file, ours.engine.plan, isa.chosen()
        work = Work.of(file, plan, max(contexts))
        multiply = multiply_of(used, floats=work.floats)
        with Roofs(work.read_bytes, snapshot().free_bytes, threads, multiply) as roofs:
            measure = partial(_take_turns, {"edgespec": ours, "llama.cpp": theirs}, roofs, rounds)
            found = {
                "model": model.name,
                "types": plan.quantisation,
                "isa": used,
                "llama_build": theirs.build,
                "weight_bytes": work.weight_bytes,
                "prefill": measure(_PREFILL),
                "contexts": {
                    past: measure(_questions(past))
                    | {"read_bytes": Work.of(file, plan, past).read_bytes}
                    for past in contexts
                },
            }
        ours.engine.close()
    return found


_PREFILL: dict[str, Ask] = {
    f"prefill {PREFILL_TOKENS}": lambda engine: engine.prefill(PREFILL_TOKENS)
}


def _questions(past: int) -> dict[str, Ask]:
    return {
        **{f"T({n})": lambda engine, n=n: engine.forward(n, past) for n in SIZES},
        f"decode {DECODE_TOKENS}": lambda engine: engine.decode(DECODE_TOKENS, past),
    }


def _take_turns(
    engines: dict[str, Any], roofs: Roofs, rounds: int, questions: dict[str, Ask]
) -> dict[str, Any]:
    """One figure for each engine, question and round; how fast memory was meanwhile."""

    def median(ask: Ask, engine: Any) -> Sequence[float]:
        return [statistics.median(ask(engine))]

    groups = {
        name: {side: partial(median, ask, engine) for side, engine in engines.items()}
        for name, ask in questions.items()
    }
    rates = {"read": {"": lambda: [statistics.median(roofs.read())]}}
    seconds, failed = take_turns(groups | rates, rounds)
    if failed:
        raise PeerError("; ".join(failed.values()))
    return {"read_rates": seconds.pop("read")[""], "seconds": seconds}


def machine() -> str:
    """What this was measured on."""
    here = Machine.here()
    versions = here.versions | {"llama-cpp-python": package_version("llama-cpp-python")}
    load = "" if here.load_average is None else f", load average {here.load_average:.1f}"
    told = ", ".join(f"{name} {text}" for name, text in versions.items())
    return f"{here.processor}, {here.cores} cores, {here.system}{load}; {told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--context", default="256", help="tokens already in the cache, by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    words = options.context.split(",")
    if not all(word.isdigit() and int(word) for word in words) or options.rounds < 1:
        parser.error("--context and --rounds are whole numbers from 1")
    contexts = sorted(map(int, words))
    found = [compare(model, options.threads, contexts, options.rounds) for model in options.models]
    if options.json:
        print(json.dumps({"machine": machine(), "models": found}))
        return
    print(f"{machine()}\n{options.threads} threads, f16 KV, {options.rounds} rounds taking turns")
    for result in found:
        print(f"\n{peer_report.text(result)}")


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.exit(str(error))
