"""What drafting costs: microseconds of a step and bytes held, for each drafter and for markets.

    python benchmarks/drafters.py [--drafters all] [--contexts 8192,65536] [--nodes 8] [--cold]

`propose` and `select` are what an asked step adds before its pass: the proposal, and choosing how
much of it to verify at the prices of a 336M model in Q8_0. `observe` and `extend` come after it.
`market auto` is the engine's default drafters, `market all` every one; each holds as many bytes as
the engine gives it. The text is made: words drawn by Zipf's law into sentences, of which every
third comes again. The made-up target goes on with that text, so that part of the drafts is right;
its runners-up are words drawn by the same law. With `--cold` 32 MiB are read before each step, as a
pass reads its weights. Medians over the steps of one process, after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from edgespec.control import Controller, CostCurve
from edgespec.drafting.base import Drafter, DraftTree, StepOutcome, TopTokens
from edgespec.drafting.market.market import Market
from edgespec.drafting.registry import DRAFTERS, drafter_names
from edgespec.system.size import MIB, format_size
from edgespec.tools.replay.lanes import make, make_market

VOCABULARY = 32_000
STEPS = 400
CURVE = {1: 13.2e-3, 2: 13.9e-3, 4: 16.2e-3, 8: 19.7e-3, 16: 26.6e-3}
COLD_BYTES = 32 * MIB
MARKETS = {"market auto": drafter_names("auto"), "market all": tuple(DRAFTERS)}


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


def measure(name: str, context: int, nodes: int, cold: NDArray[np.int64]) -> dict[str, float]:
    """Median microseconds of each call of a step."""
    drafter = make_market(MARKETS[name]) if name in MARKETS else make(name, 2 * MIB)
    controller = Controller(CostCurve(CURVE), nodes + 1)
    text = text_of(context + 16 * STEPS)
    rng = np.random.default_rng(3)
    start = time.perf_counter()
    drafter.reset(text[:context])
    drafter.propose(1)
    reset_s = time.perf_counter() - start
    place = context
    calls = "propose", "select", "observe", "extend"
    times: dict[str, list[float]] = {key: [] for key in (*calls, "draft", "step")}
    accepted = drafted = 0
    for _ in range(STEPS):
        cold.sum()
        controller.draft_room()
        t0 = time.perf_counter()
        tree = drafter.propose(nodes)
        t1 = time.perf_counter()
        controller.choose(tree, t1 - t0)
        t2 = time.perf_counter()
        outcome = outcome_of(tree, text[place : place + 16].tolist(), drafter, rng)
        cold.sum()
        t3 = time.perf_counter()
        drafter.observe(outcome)
        t4 = time.perf_counter()
        drafter.extend(list(outcome.new_tokens))
        t5 = time.perf_counter()
        if isinstance(drafter, Market):
            drafter.take_seconds()
        place += len(outcome.new_tokens)
        accepted += len(outcome.path) - 1
        drafted += len(tree) - 1
        spent = t1 - t0, t2 - t1, t4 - t3, t5 - t4, t2 - t0, t2 - t0 + t5 - t3
        for key, seconds in zip(times, spent, strict=True):
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
    parser.add_argument("--drafters", default="all")
    parser.add_argument("--contexts", default="8192,65536")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    names = [*MARKETS, *DRAFTERS] if asked.drafters == "all" else asked.drafters.split(",")
    cold = np.zeros(COLD_BYTES // 8 if asked.cold else 0, np.int64)
    rows = []
    for name in names:
        for context in map(int, asked.contexts.split(",")):
            measure(name, 256, asked.nodes, cold)  # compiles
            rows.append(
                {"name": name, "context": context} | measure(name, context, asked.nodes, cold)
            )
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    print(
        f"{'drafter':18}{'context':>8}{'propose+select us':>19}{'propose':>9}{'select':>8}"
        f"{'observe':>9}{'extend':>8}{'step':>7}{'reset ms':>10}{'drafted':>9}{'accepted':>10}"
        f"{'holds':>11}"
    )
    for row in rows:
        print(
            f"{row['name']:18}{row['context']:8}{row['draft_us']:19.1f}{row['propose_us']:9.1f}"
            f"{row['select_us']:8.1f}{row['observe_us']:9.1f}{row['extend_us']:8.1f}"
            f"{row['step_us']:7.1f}{row['reset_ms']:10.1f}{row['drafted']:9.2f}"
            f"{row['accepted']:10.2f}{format_size(int(row['bytes'])):>11}"
        )


if __name__ == "__main__":
    main()
