"""What drawing a token from a row of logits takes, by sampling settings.

    python benchmarks/selection.py [--vocab 151936] [--draws 400] [--seed 0] [--model MODEL]

Medians and means in microseconds over draws from eight rows in turn, with the maxima of the tiles
given, as the native backend gives them. Rows are made up: `flat` is normal noise of standard
deviation 3, of which top-p 0.95 keeps some 13,000 tokens; `peaked` is noise of 2.2 and 30 tokens
that stand out, nearer to what a language model is sure of. With a model, its own rows instead, each
drawn from right after the pass that computed it, when the caches hold weights. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.backends.base import TILE, TokenTree
from edgespec.verification.match import Verifier
from edgespec.verification.sampling import SamplingParams

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


def make_rows(kind: str, vocab_size: int, rng: np.random.Generator) -> Floats:
    """Eight rows [8, vocab]."""
    if kind == "flat":
        return (rng.standard_normal((8, vocab_size)) * 3.0).astype(np.float32)
    rows = rng.standard_normal((8, vocab_size)) * 2.2
    for row in rows:
        row[rng.integers(0, vocab_size, 30)] = 20.0 - np.arange(30) * 0.45
    return rows.astype(np.float32)


def maxima_of(rows: Floats) -> Floats:
    """Of every tile, [rows, tiles]."""
    padding = -rows.shape[1] % TILE
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=-np.inf)
    found: Floats = padded.reshape(len(rows), -1, TILE).max(axis=2)
    return found


def measure(rows: Floats, options: dict[str, Any], draws: int) -> list[float]:
    """Microseconds of each draw."""
    vocab_size = rows.shape[1]
    verifier = Verifier(vocab_size, SamplingParams(seed=1, **options), 1)
    maxima, recent = maxima_of(rows), np.arange(64, dtype=np.int32) * 17 % vocab_size
    root, parents = np.zeros(1, np.int32), np.full(1, -1, np.int16)
    times = []
    for draw in range(draws + 8):
        which = slice(draw % 8, draw % 8 + 1)
        start = time.perf_counter()
        verifier.verify(rows[which], root, parents, recent, 100 + draw, maxima[which])
        times.append(1e6 * (time.perf_counter() - start))
    return times[8:]


def measure_in_place(model: str, draws: int) -> None:
    """Print a model's T(1) and what drawing from its rows takes."""
    with edgespec.load(model, context=512) as engine:
        target = engine._target  # the one the engine decodes with
        vocab_size = target.spec.vocab_size
        target.prefill(np.arange(256, dtype=np.int32) % vocab_size)
        tree, recent = TokenTree.chain([7]), np.arange(64, dtype=np.int32) * 17 % vocab_size
        for name, options in SETTINGS.items():
            verifier = Verifier(vocab_size, SamplingParams(seed=1, **options), 1)
            passes, times = [], []
            for draw in range(draws):
                start = time.perf_counter()
                logits = target.forward(tree)
                passed = time.perf_counter()
                verifier.verify(
                    logits, tree.tokens, tree.parents, recent, 256 + draw, target.maxima
                )
                times.append(1e6 * (time.perf_counter() - passed))
                passes.append(1e3 * (passed - start))
            print(
                f"{Path(model).name} {name:30} T(1) {statistics.median(passes):7.3f} ms  "
                f"median {statistics.median(times):7.1f}  mean {statistics.mean(times):7.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    asked = parser.parse_args()
    if asked.model:
        measure_in_place(asked.model, asked.draws)
        return
    rng = np.random.default_rng(asked.seed)
    for kind in ("flat", "peaked"):
        rows = make_rows(kind, asked.vocab, rng)
        for name, options in SETTINGS.items():
            times = measure(rows, options, asked.draws)
            print(
                f"{kind:8} {name:30} median {statistics.median(times):7.1f}  "
                f"mean {statistics.mean(times):7.1f}  largest {max(times):7.1f}"
            )


if __name__ == "__main__":
    main()
