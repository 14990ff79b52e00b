"""EdgeSpec and llama.cpp side by side on the same file, in one run, taking turns.

    python -m lab.peers curve MODEL... [--context 256,4096] [--threads 2] [--rounds 7]
    python -m lab.peers server [MODEL] [--server PATH] [--draft-model FILE | --exit-layer E]

`curve`: prefill of 512 tokens up to the first logits; then, on top of each context, T(n), the time
of one forward pass over n tokens with logits for all of them, and plain decoding in tokens a
second, greedy, no speculation. llama.cpp runs in a process of its own (llama-cpp-python's low-level
API, f16 KV, the same number of threads), and each engine waits while the other computes. In every
round memory is read in one direction by as many threads, over as many bytes as a pass reads. To
compare with another build, ik_llama.cpp's for one, put a llama_cpp package that binds it on
PYTHONPATH.

`server`: our drafters on the llama.cpp backend beside llama.cpp's server and its own drafting.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import edgespec
from edgespec.backends.native.kernels.codegen import isa
from edgespec.models.registry import resolve
from edgespec.system.child_process import PeerError
from edgespec.system.hardware import snapshot
from edgespec.tools.bench.curve import Work, pass_seconds, timed, tokens
from edgespec.tools.bench.llamacpp import LlamaProcess
from edgespec.tools.bench.loops import multiply_of
from edgespec.tools.bench.roofs import Roofs
from edgespec.tools.bench.turns import Ask as OneFigure
from edgespec.tools.bench.turns import take_turns
from lab import llama_server, peer_report
from lab.harness import MODEL, MODELS, Asked, Rows, Script, numbers, option, rounds
from lab.peer_report import DECODE_TOKENS, PREFILL_TOKENS, SIZES
from tests.support.passes import Passes

Ask = Callable[[Any], list[float]]
"""Asks one engine; seconds of one turn."""
script = Script(__doc__)


@script.command(
    MODELS,
    option("--context", type=numbers, default=[256], help="tokens already in the cache, by commas"),
    option("--threads", type=int, default=2),
    rounds(7),
)
def curve(asked: Asked) -> Rows:
    """T(n), decoding and prefill of both engines; goals are told as met or missed."""
    for model in asked.models:
        found = compare(model, asked.threads, sorted(asked.context), asked.rounds)
        script.note(peer_report.text(found))
        if asked.json:
            yield found


@script.command(
    MODEL,
    option("--server", default=shutil.which("llama-server")),
    option("--draft-model", type=Path),
    option("--exit-layer", type=int),
    option("--only", default=""),
    option("--tokens", type=int, default=128),
    rounds(3),
    option("--threads", type=int, default=2),
)
def server(asked: Asked) -> Rows:
    """Greedy replies of our drafters and of each of the server's modes.

    The server is started for every round and mode, so that none remembers replies of earlier
    rounds. Its mode with a draft model takes a file of the same vocabulary, or, with --exit-layer,
    the model's own first layers and head. `same` is how many of our tokens are the server's before
    the first that differs.
    """
    if not asked.server or not Path(asked.server).exists():
        script.note("skipped: no llama-server was found; build llama.cpp, name it with --server")
        return
    model = resolve(asked.model)
    with tempfile.TemporaryDirectory() as folder:
        modes = llama_server.modes(model, asked.draft_model, asked.exit_layer, Path(folder))
        found = llama_server.measure(asked.server, model, modes, asked)
    gains, worst = [], math.inf
    for row in llama_server.rows(found, asked.tokens):
        worst = min(worst, row["/ its plain"])
        gains += [row["/ its best lookup"]] * llama_server.PROMPTS[row["prompt"]].repeats
        yield row
    if gains:
        gain = statistics.geometric_mean(gains)
        script.check(gain >= 1.2, f"repeating prompts {gain:.2f}, at least 1.2 times its best")
    script.check(worst >= 0.98, f"worst {worst:.2f}, at least 0.98 of its plain decoding")


class Ours:
    """EdgeSpec's native target with the same few questions the peer answers."""

    def __init__(self, model: Path, threads: int, room: int) -> None:
        self.engine = edgespec.load(
            model, threads=threads, context=room, backend="native", max_nodes=max(SIZES)
        )
        self.target = self.engine.scheduler.target  # the one the engine decodes with
        self.passes = Passes(self.target)

    def forward(self, n: int, past: int) -> list[float]:
        self._fill(past)
        return pass_seconds(self.target, n)

    def prefill(self, n: int) -> list[float]:
        ids = self._tokens(n)
        self.passes.truncate()

        def work() -> None:
            self.passes.prefill(ids[:-1])
            self.passes.score(ids[-1:])

        seconds = timed(work)
        self.passes.truncate()
        return [seconds]

    def decode(self, n: int, past: int) -> list[float]:
        self._fill(past)
        return [n / self._generate(past, n)]

    def _fill(self, past: int) -> None:
        """Have these positions in the cache, and no others."""
        if self.passes.length < past:
            self._generate(past, 1)
        self.passes.truncate(past)

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
    found: dict[str, Ask] = {f"T({n})": partial(_forward, n, past) for n in SIZES}
    found[f"decode {DECODE_TOKENS}"] = lambda engine: engine.decode(DECODE_TOKENS, past)
    return found


def _forward(n: int, past: int, engine: Any) -> list[float]:
    seconds: list[float] = engine.forward(n, past)
    return seconds


def _take_turns(
    engines: dict[str, Any], roofs: Roofs, rounds: int, questions: dict[str, Ask]
) -> dict[str, Any]:
    """One figure for each engine, question and round; how fast memory was meanwhile."""

    def median(ask: Ask, engine: Any) -> Sequence[float]:
        return [statistics.median(ask(engine))]

    groups: dict[str, dict[str, OneFigure]] = {
        name: {side: partial(median, ask, engine) for side, engine in engines.items()}
        for name, ask in questions.items()
    }
    groups["read"] = {"": lambda: [statistics.median(roofs.read())]}
    seconds, failed = take_turns(groups, rounds)
    if failed:
        raise PeerError("; ".join(failed.values()))
    return {"read_rates": seconds.pop("read")[""], "seconds": seconds}


if __name__ == "__main__":
    script.run()
