"""What writing several replies at once brings: the same replies one after another and in batches.

    python benchmarks/batch.py [MODEL] [--tokens 64] [--rounds 3] [--sizes 2,4,8] [--plain|--pairs]

Everything has its turn in each round; tokens a second of all replies together, prompts included,
the median of the rounds. "samples" are replies to one prompt at temperature 0.8, whose beginning is
stored once; "prompts" are as many prompts, of different lengths. Drafters hear each other when
`--drafters` names consensus. Texts are compared, and a difference is an error.

`--pairs` asks what speculation brings to a batch with work waiting: greedy replies past their ends
to 32 + N prompts, N at once, until the last has been begun, with speculation and without in turns;
the median ratio of tokens a second, prompts included, and between which ratios half of the pairs
lie. Drafters know nothing of earlier rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.equality import prompts
from benchmarks.forgetting import forget
from edgespec.drafting.tables.consensus import ConsensusDrafter
from edgespec.engine.engine import Engine
from edgespec.engine.request import Reply

PROMPTS = [
    "Tell me a short story about a dog.",
    "Say it again and again: a red ball, a blue box, a red ball, a blue box, a red ball.",
    "Why is the sky blue?",
    "Extract name and age as JSON: Tom is 5. Sue is 6. Ann is 7. Bob is 8.",
    "Hello!",
    "Write a poem about rain that falls on the roof of an old house by the sea.",
    "List the days of the week.",
    "Once upon a time there was a king who had three daughters, and the youngest of them",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="2,4,8")
    parser.add_argument("--drafters", default="auto")
    parser.add_argument("--plain", action="store_true", help="without speculation only")
    parser.add_argument("--pairs", action="store_true", help="with speculation and without")
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.sizes.split(",")]
    with edgespec.load(
        asked.model, context=512, sequences=max(sizes), drafters=asked.drafters
    ) as engine:
        print("T(n), ms:", {n: round(1e3 * s, 2) for n, s in engine.cost_curve().items()})
        if asked.pairs:
            _pair(engine, sizes, asked.rounds, asked.tokens)
            return
        for name in ("prompts", "samples"):
            for speculation in (False,) if asked.plain else (False, True):
                _compare(engine, name, speculation, sizes, asked.rounds, asked.tokens)


def _compare(
    engine: Engine, name: str, speculation: bool, sizes: list[int], rounds: int, tokens: int
) -> None:
    options = {"max_tokens": tokens, "speculation": speculation}
    speeds: dict[int, list[float]] = defaultdict(list)
    steps: dict[int, float] = {}
    texts: dict[int, list[str]] = {}
    for turn in range(rounds + 1):
        for size in (1, *sizes):
            start = time.perf_counter()
            replies = _write(engine, name, size, options)
            seconds = time.perf_counter() - start
            if turn:  # in the first, drafters are compiled
                speeds[size].append(sum(len(reply.token_ids) for reply in replies) / seconds)
            steps[size] = statistics.mean(reply.stats.tokens_per_step for reply in replies)
            texts[size] = [reply.text for reply in replies]
    assert all(found == texts[1] for found in texts.values()), "a batch changed a text"
    alone = statistics.median(speeds[1])
    for size, found in speeds.items():
        speed = statistics.median(found)
        print(
            f"{name:8} {'speculation' if speculation else 'plain':12} {size} at once "
            f"{speed:7.0f} tokens/s ({min(found):.0f} to {max(found):.0f})  "
            f"{speed / alone:.2f}x  tokens/step {steps[size]:.2f}"
        )


def _pair(engine: Engine, sizes: list[int], rounds: int, tokens: int) -> None:
    engine.lanes(engine.plan.sequences)
    for size in sizes:
        texts = list(islice(prompts(), 0, (32 + size) * 7, 7))
        ratios, accepted, written = [], 0, 0
        for turn in range(-1, rounds):  # the first pair warms up
            speeds = {}
            for speculation in (True, False) if turn % 2 else (False, True):
                forget(engine)
                start = time.perf_counter()
                stream = engine.stream_batch(
                    texts,
                    max_batch=size,
                    max_tokens=tokens,
                    temperature=0.0,
                    ignore_eos=True,
                    speculation=speculation,
                )
                while stream._batch._waiting or not stream._batch._running:
                    next(stream)
                seconds = time.perf_counter() - start
                stream.close()
                stats = [reply.stats for reply in stream.replies]
                num_tokens = sum(one.output_tokens for one in stats)
                speeds[speculation] = num_tokens / seconds
                if speculation and turn >= 0:
                    accepted += sum(one.accepted for one in stats)
                    written += num_tokens
            if turn >= 0:
                ratios.append(speeds[True] / speeds[False])
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{size} at once: speculation {middle:.3f}x ({low:.3f}-{high:.3f}), "
            f"{100 * accepted / written:.0f} % of the tokens were drafted",
            flush=True,
        )


def _write(engine: Engine, name: str, size: int, options: dict[str, Any]) -> list[Reply]:
    """Eight replies, so many at once; one at a time is `generate`."""
    for session in engine.lanes(engine.plan.sequences):  # from nothing
        session.sequence.truncate(0)
        session.ids.clear()
        for source in session.market._sources:
            if isinstance(source.drafter, ConsensusDrafter):
                source.drafter.pool.prompt = b""  # what is remembered of it goes with the next
    texts = PROMPTS if name == "prompts" else PROMPTS[:1] * len(PROMPTS)
    seeds = [1] * len(texts) if name == "prompts" else range(1, len(texts) + 1)
    pairs = zip(texts, seeds, strict=True)
    if size == 1:
        return [engine.generate(prompt, seed=seed, **options) for prompt, seed in pairs]
    requests = [engine.request(prompt, seed=seed, **options) for prompt, seed in pairs]
    return engine.generate_batch(requests, max_batch=size)


if __name__ == "__main__":
    main()
