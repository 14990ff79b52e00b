"""What speculation costs on texts that nobody can foretell, or that mislead: with it and without,
in pairs.

    python benchmarks/adversarial.py [MODEL] [--drafters auto|all] [--tokens 128] [--rounds 9]

Each reply is written with speculation and without, in turns, and the ratio of their speeds is taken
pair by pair: the median, and between which ratios half of the pairs lie. `decoding` leaves the
prompt out, `reply` is all that `generate` takes with the prompt's keys and values in the cache.
What drafters learnt in earlier rounds is forgotten. `holds` is what the stores hold, of what was
planned for them. Exit code 1: stores beyond their plan.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.forgetting import forget
from edgespec.drafting.registry import DRAFTERS
from edgespec.engine.engine import Engine
from edgespec.system.size import format_size

NOISE: dict[str, Any] = {"temperature": 4.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""So hot that whatever was drafted is wrong."""
PERIOD, LENGTH = 37, 256


def texts(engine: Engine, num_tokens: int) -> dict[str, tuple[str | list[int], dict[str, Any]]]:
    """By name: a prompt and how the reply to it is drawn."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(300, engine.file.spec.vocab_size, LENGTH).tolist()
    same, pair = tokens[:1] * LENGTH, tokens[:2] * (LENGTH // 2)
    period = (tokens[:PERIOD] * (LENGTH // PERIOD + 1))[:LENGTH]
    full = (tokens * (engine.plan.context_length // LENGTH + 1))[: engine.plan.context_length]
    story = "Tell me a short story about a dog."
    greedy = {"temperature": 0.0}
    return {
        "random prompt, random reply": (tokens, NOISE),
        "random prompt, greedy": (tokens, greedy),
        "identical tokens, random reply": (same, NOISE),
        "identical tokens, greedy": (same, greedy),
        "alternating, random reply": (pair, NOISE),
        "alternating, greedy": (pair, greedy),
        "period of 37, random reply": (period, NOISE),
        "period of 37, greedy": (period, greedy),
        "to the end of the context": (full[: -num_tokens // 2], NOISE),
        "past it, sliding window": (full[: -num_tokens // 2], NOISE | {"on_overflow": "sliding"}),
        "empty prompt": (engine.encode("", raw=True) or tokens[:1], {}),
        "story": (story, {}),
        "story, greedy": (story, greedy),
    }


@dataclass(frozen=True, slots=True)
class Taken:
    """What one reply took."""

    decoding_s: float
    reply_s: float
    tokens: int
    steps: int


def write(engine: Engine, prompt: str | list[int], **options: Any) -> Taken:
    """Write a reply by drafters that know nothing of earlier ones."""
    forget(engine)
    start = time.perf_counter()
    stats = engine.generate(prompt, ignore_eos=True, **options).stats
    reply_s = time.perf_counter() - start
    decoding_s = stats.output_tokens / stats.tokens_per_second
    return Taken(decoding_s, reply_s, stats.output_tokens, stats.steps)


def quartiles(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--drafters", default="auto")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--only", default="", help="texts whose names hold this")
    asked = parser.parse_args()
    drafters = ",".join(DRAFTERS) if asked.drafters == "all" else asked.drafters
    with edgespec.load(asked.model, drafters=drafters, context=asked.context) as engine:
        market = engine.scheduler.slots[0].market
        print(
            f"a plain pass takes {1e3 * engine.cost_curve()[1]:.2f} ms, {asked.drafters} drafters"
        )
        print(f"{'':32}{'decoding':>22}{'reply':>22}{'tokens/step':>13}{'holds':>10}")
        most_bytes = 0
        for name, (prompt, options) in texts(engine, asked.tokens).items():
            if asked.only not in name:
                continue
            options |= {"max_tokens": asked.tokens}
            decoding, whole, tokens, steps = [], [], 0, 0
            for turn in range(-1, asked.rounds):  # the first pair warms up
                pair = {
                    on: write(engine, prompt, speculation=on, seed=turn + 1, **options)
                    for on in ((True, False) if turn % 2 else (False, True))
                }
                if turn >= 0:
                    decoding.append(pair[False].decoding_s / pair[True].decoding_s)
                    whole.append(pair[False].reply_s / pair[True].reply_s)
                    tokens += pair[True].tokens
                    steps += pair[True].steps
            most_bytes = max(most_bytes, market.size_bytes)
            print(
                f"{name:32}{quartiles(decoding):>22}{quartiles(whole):>22}"
                f"{tokens / steps:13.2f}"
                f"{format_size(market.size_bytes):>10}",
                flush=True,
            )
        planned = engine.plan.drafter_bytes
        print(f"stores held {format_size(most_bytes)} at most; planned {format_size(planned)}")
    sys.exit(1 if most_bytes > planned else 0)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.environ["EDGESPEC_DATA"] = folder  # the user's own history stays as it is
        main()
