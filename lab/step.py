"""What is in a step besides the pass: sampling, text, bookkeeping, Python.

    python -m lab.step between [MODEL] [--backend native] [--tokens 250] [--rounds 4]
    python -m lab.step beside [MODEL] [--speculation] [--tokens 250] [--rounds 20]
    python -m lab.step sampling [--vocab 151936] [--draws 400] [--model MODEL]

`between`: microseconds of a pass, and between two passes, in plain decoding. `beside`: processor
time of steps whose passes compute nothing, and of it what is outside of `forward`. `sampling`:
drawing a token from a row of logits, by sampling settings.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edgespec
from edgespec.backends.native.kernels import forward, whole_pass
from edgespec.backends.passes import TILE
from edgespec.verification.match import Verifier
from edgespec.verification.sampling import SamplingParams
from lab.harness import (
    MODEL,
    Asked,
    Rows,
    Script,
    Spread,
    forget,
    option,
    rounds,
    timing_passes,
    tokens,
)
from tests.support.passes import Passes

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, penalty 1.1": {"temperature": 0.0, "repetition_penalty": 1.1},
    "default chain": {},
    "default chain, penalty 1.1": {"repetition_penalty": 1.1},
    "top-p only": {"top_k": 0, "min_p": 0.0},
    "top-p 0.5 only": {"top_k": 0, "min_p": 0.0, "top_p": 0.5},
    "top-p only, temperature 1.5": {"top_k": 0, "min_p": 0.0, "temperature": 1.5},
    "top-p, min-p": {"top_k": 0},
    "min-p only": {"top_k": 0, "top_p": 1.0},
    "temperature only": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
Floats = NDArray[np.float32]
script = Script(__doc__)


@script.command(
    MODEL,
    option("--backend", default="native"),
    option("--speculation", action="store_true", help="drafting and its bookkeeping, too"),
    tokens(250),
    rounds(4),
)
def between(asked: Asked) -> Rows:
    """Medians of one greedy reply in each round, the first to warm up."""
    with edgespec.load(asked.model, backend=asked.backend) as engine:
        for turn in range(asked.rounds + 1):
            with timing_passes(engine) as times:
                engine.generate(
                    "Tell me a story about a dog.",
                    max_tokens=asked.tokens,
                    temperature=0,
                    ignore_eos=True,
                    speculation=asked.speculation,
                )
            gaps = [after[0] - before[1] for before, after in zip(times, times[1:], strict=False)]
            if turn:
                yield {
                    "round": turn,
                    "pass, us": 1e6 * statistics.median(end - begin for begin, end in times),
                    "between passes, us": 1e6 * statistics.median(gaps),
                }


@script.command(MODEL, option("--speculation", action="store_true"), tokens(250), rounds(20))
def beside(asked: Asked) -> Rows:
    """Microseconds of processor time of a step, the native backend's kernels left out: medians of
    replies, and the lowest.
    """
    with edgespec.load(asked.model, backend="native", sequences=1) as engine:
        target, compute = engine.scheduler.target, engine.scheduler.target.forward
        target.compiled_pass = lambda *_: None  # type: ignore[method-assign]

        def reply() -> float:
            forget(engine)
            start = time.process_time()
            made = engine.generate(
                "Tell me a short story about a dog.",
                max_tokens=asked.tokens,
                seed=1,
                ignore_eos=True,
                speculation=asked.speculation,
            )
            return 1e6 * (time.process_time() - start) / made.stats.steps

        reply()
        forward.run = whole_pass.compute = lambda *_: None  # type: ignore[assignment]
        known: dict[int, Any] = {}

        def found(parts: Any, **options: Any) -> Any:
            size = len(parts[0][1])
            if size not in known:
                known[size] = compute(parts, **options)
            parts[0][0].expect(parts[0][1].parents.tolist())
            return known[size]

        for name, own in ("all", compute), ("outside of forward", found):
            target.forward = own  # type: ignore[method-assign]
            reply()
            yield {"us a step": name, "": Spread.of([reply() for _ in range(asked.rounds)])}


@script.command(
    option("--vocab", type=int, default=151_936),
    option("--draws", type=int, default=400),
    option("--seed", type=int, default=0),
    option("--model", help="its own rows, each drawn from right after the pass that computed it"),
)
def sampling(asked: Asked) -> Rows:
    """Microseconds of a draw, the maxima of tiles given.

    Rows are made up: `flat` is normal noise of standard deviation 3, of which top-p 0.95 keeps some
    13,000 tokens; `peaked` is noise of 2.2 and 30 tokens that stand out, nearer to what a language
    model is sure of.
    """
    if asked.model:
        yield from _in_place(asked.model, asked.draws)
        return
    rng = np.random.default_rng(asked.seed)
    for kind in ("flat", "peaked"):
        found = _made_up(kind, asked.vocab, rng)
        for name, options in SETTINGS.items():
            times = _draws(found, options, asked.draws)
            yield {"settings": f"{kind}, {name}", "us": Spread.of(times)} | _mean(times)


def _mean(times: list[float]) -> dict[str, float]:
    return {"mean": statistics.mean(times)}


def _made_up(kind: str, vocab_size: int, rng: np.random.Generator) -> Floats:
    """Eight rows [8, vocab]."""
    if kind == "flat":
        return (rng.standard_normal((8, vocab_size)) * 3.0).astype(np.float32)
    found = rng.standard_normal((8, vocab_size)) * 2.2
    for row in found:
        row[rng.integers(0, vocab_size, 30)] = 20.0 - np.arange(30) * 0.45
    return found.astype(np.float32)


def _draws(found: Floats, options: dict[str, Any], draws: int) -> list[float]:
    vocab_size = found.shape[1]
    verifier = Verifier(vocab_size, SamplingParams(seed=1, **options), 1)
    padded = np.pad(found, ((0, 0), (0, -vocab_size % TILE)), constant_values=-np.inf)
    maxima = padded.reshape(len(found), -1, TILE).max(axis=2)
    recent = np.arange(64, dtype=np.int32) * 17 % vocab_size
    root, parents = np.zeros(1, np.int32), np.full(1, -1, np.int16)
    times = []
    for draw in range(draws + 8):
        which = slice(draw % 8, draw % 8 + 1)
        start = time.perf_counter()
        verifier.verify(found[which], root, parents, recent, 100 + draw, maxima[which])
        times.append(1e6 * (time.perf_counter() - start))
    return times[8:]


def _in_place(model: str, draws: int) -> Iterator[dict[str, Any]]:
    with edgespec.load(model, context=512) as engine:
        passes, vocab_size = Passes(engine.scheduler.target), engine.file.spec.vocab_size
        passes.prefill(np.arange(256, dtype=np.int32) % vocab_size)
        recent = np.arange(64, dtype=np.int32) * 17 % vocab_size
        root, parents = np.full(1, 7, np.int32), np.full(1, -1, np.int16)
        for name, options in SETTINGS.items():
            verifier = Verifier(vocab_size, SamplingParams(seed=1, **options), 1)
            pass_ms, times = [], []
            for draw in range(draws):
                start = time.perf_counter()
                found, maxima = passes.score_and_maxima([7])
                passed = time.perf_counter()
                verifier.verify(found, root, parents, recent, 256 + draw, maxima)
                times.append(1e6 * (time.perf_counter() - passed))
                pass_ms.append(1e3 * (passed - start))
            row = {"settings": name, "T(1), ms": statistics.median(pass_ms)}
            yield row | {"us": Spread.of(times)} | _mean(times)


if __name__ == "__main__":
    script.run()
