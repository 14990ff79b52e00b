"""What each drafter costs: microseconds of a step and bytes held.

    python benchmarks/drafters.py [--drafters NAMES] [--contexts 8192,65536] [--nodes 8] [--json]

A step is `propose`, `observe` and `extend`, as the decode loop calls them. The text is made: words
drawn by Zipf's law into sentences, of which every third comes again. The made-up target goes on
with that text, so that part of the drafts is right; its runners-up are words drawn by the same law.
Medians over the steps of one process, after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from edgespec.drafting.base import Drafter, DraftTree, StepOutcome, TopTokens
from edgespec.memory.size import MIB, format_size
from edgespec.opening import DRAFTERS

VOCABULARY = 32_000
STEPS = 400


def text_of(num_tokens: int) -> NDArray[np.int32]:
    """Sentences of Zipf-drawn words; every third repeats an earlier one."""
    rng = np.random.default_rng(7)
    sentences: list[NDArray[np.int32]] = []
    length = 0
    while length < num_tokens:
        if sentences and rng.random() < 0.33:
            sentence = sentences[int(rng.integers(len(sentences)))]
        else:
            words = rng.zipf(1.2, int(rng.integers(5, 30)))
            sentence = (words % VOCABULARY).astype(np.int32)
        sentences.append(sentence)
        length += len(sentence)
    return np.concatenate(sentences)[:num_tokens]


def outcome_of(
    tree: DraftTree, coming: list[int], drafter: Drafter, rng: np.random.Generator
) -> StepOutcome:
    """Accept what goes on as the text does."""
    path, node, new = [0], 0, []
    for token in coming:
        new.append(token)
        below = np.flatnonzero((tree.parents == node) & (tree.tokens == token))
        if not len(below) or len(new) == len(coming):
            break
        node = int(below[0])
        path.append(node)
    top = None
    if drafter.wants_top:
        shape = len(tree), drafter.wants_top
        tokens = (rng.zipf(1.2, shape) % VOCABULARY).astype(np.int32)
        logits = -np.sort(-rng.normal(0.0, 3.0, shape)).astype(np.float32)
        for place, accepted in enumerate(path):
            tokens[accepted, 0] = new[place]
        top = TopTokens(tokens, logits)
    return StepOutcome(tree, path, new[-1], new, top)


def measure(name: str, context: int, nodes: int, max_bytes: int) -> dict[str, float]:
    """Median microseconds of each call of a step."""
    module, kind = DRAFTERS[name]
    drafter: Drafter = getattr(import_module(f"edgespec.drafting.{module}"), kind)(max_bytes)
    text = text_of(context + 16 * STEPS)
    rng = np.random.default_rng(3)
    start = time.perf_counter()
    drafter.reset(text[:context])
    drafter.propose(1)
    reset_s = time.perf_counter() - start
    place = context
    times: dict[str, list[float]] = {"propose": [], "observe": [], "extend": [], "step": []}
    accepted = drafted = 0
    for _ in range(STEPS):
        t0 = time.perf_counter()
        tree = drafter.propose(nodes)
        t1 = time.perf_counter()
        outcome = outcome_of(tree, text[place : place + 16].tolist(), drafter, rng)
        t2 = time.perf_counter()
        drafter.observe(outcome)
        t3 = time.perf_counter()
        drafter.extend(outcome.new_tokens)
        t4 = time.perf_counter()
        place += len(outcome.new_tokens)
        accepted += len(outcome.path) - 1
        drafted += len(tree) - 1
        for key, seconds in zip(times, (t1 - t0, t3 - t2, t4 - t3, t1 - t0 + t4 - t2), strict=True):
            times[key].append(seconds)
    found = {f"{key}_us": 1e6 * statistics.median(times[key][50:]) for key in times}
    return found | {
        "reset_ms": 1e3 * reset_s,
        "drafted": drafted / STEPS,
        "accepted": accepted / STEPS,
        "bytes": drafter.size_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--contexts", default="8192,65536")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--bytes", type=int, default=2 * MIB)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for name in asked.drafters.split(","):
        for context in map(int, asked.contexts.split(",")):
            measure(name, 256, asked.nodes, asked.bytes)  # compiles
            rows.append(
                {"name": name, "context": context}
                | measure(name, context, asked.nodes, asked.bytes)
            )
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    print(
        f"{'drafter':18}{'context':>8}{'step us':>9}{'propose':>9}{'observe':>9}{'extend':>8}"
        f"{'reset ms':>10}{'drafted':>9}{'accepted':>10}{'holds':>11}"
    )
    for row in rows:
        print(
            f"{row['name']:18}{row['context']:8}{row['step_us']:9.1f}{row['propose_us']:9.1f}"
            f"{row['observe_us']:9.1f}{row['extend_us']:8.1f}{row['reset_ms']:10.1f}"
            f"{row['drafted']:9.2f}{row['accepted']:10.2f}{format_size(int(row['bytes'])):>11}"
        )


if __name__ == "__main__":
    main()
