"""What do tables that all samples of a prompt share bring?

    python -m lab.samples counts --bench FOLDER [--samples 4,8,16] [--prompts 8] [--branches]
    python -m lab.samples seconds --bench FOLDER [--model MODEL] [--samples 4,16] [--rounds 3]

BENCH holds spec_bench.jsonl.gz, whose questions of mathematics are answered many times over at
`--temperature`. `counts`: the samples are replayed beside each other, a step of each in turn, with
every drafter asked and all that is drafted verified, so no clock decides about the figures; with
`--branches` each goes on from another first token, the likeliest ones, as the branches of a tree of
thoughts do. `seconds`: the engine writes them, with drafters and plainly in turns.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

import edgespec
from edgespec.drafting.base import Drafter
from edgespec.drafting.market.market import Market
from edgespec.drafting.registry import make_drafter
from edgespec.drafting.tables.consensus import ConsensusPools
from edgespec.drafting.tables.table_drafter import TableDrafter
from edgespec.drafting.text.past import Past, past_bytes
from edgespec.drafting.tree import TopTokens
from edgespec.errors import ContextOverflowError
from edgespec.system.size import MIB
from edgespec.tools.replay.steps import Tally, steps_of
from edgespec.tools.replay.transcripts import Transcript
from edgespec.verification.sampling import SamplingParams
from lab.harness import (
    Asked,
    Rows,
    Script,
    alternate,
    names,
    numbers,
    option,
    ratios,
    read_lines,
    rounds,
    start_anew,
)

TOP = 8
NODES = 8
STORE_BYTES = 2 * MIB
SETS = (
    ("suffix-automaton", "trigram"), ("stand",), ("recycling",), ("consensus",),
    ("suffix-automaton", "trigram", "stand"), ("suffix-automaton", "trigram", "recycling"),
    ("suffix-automaton", "trigram", "consensus"),
)  # fmt: skip
script = Script(__doc__)


def sampled(asked: Asked, most: int) -> list[list[Transcript]]:
    """For each prompt, so many replies with their likeliest tokens."""
    found: list[list[Transcript]] = []
    with edgespec.load(asked.model) as engine:
        for question in read_lines(asked.bench / "spec_bench.jsonl.gz"):
            if question["category"] != asked.category or len(found) == asked.prompts:
                continue
            prompt, replies = engine.encode(question["turns"][0]), []
            try:
                starts: list[list[int]] = [[]] * most
                if asked.branches:
                    starts = first_tokens(engine, prompt, most)
                for seed, start in enumerate(starts):
                    ids = [*prompt, *start]
                    reply = engine.generate(
                        ids, max_tokens=asked.tokens, temperature=asked.temperature, seed=seed,
                        logprobs=TOP, ignore_eos=True,
                    )  # fmt: skip
                    likely = np.array([at.top for at in reply.logprobs or []])
                    top = TopTokens(
                        likely[:, :, 0].astype(np.int32), likely[:, :, 1].astype(np.float32)
                    )
                    params = SamplingParams(temperature=asked.temperature, seed=seed)
                    replies.append(Transcript(ids, reply.token_ids, top, params))
            except ContextOverflowError:
                continue
            found.append(replies)
    return found


def first_tokens(engine: edgespec.Engine, ids: list[int], most: int) -> list[list[int]]:
    """The likeliest first tokens of a reply."""
    reply = engine.generate(ids, max_tokens=1, temperature=0.0, logprobs=most, ignore_eos=True)
    assert reply.logprobs is not None
    return [[token] for token, _ in reply.logprobs[0].top]


def drafters_of(names: Sequence[str], num: int, shared: bool) -> list[Drafter]:
    """A market for each sample; what the engine shares among them is shared, or nothing is."""
    markets: list[Drafter] = []
    firsts: dict[str, Drafter] = {}
    past, pools = Past(past_bytes(STORE_BYTES)), ConsensusPools()
    for _ in range(num):
        made = []
        for name in names:
            common: dict[str, object] = {}
            if name == "suffix-automaton":
                common["past"] = past if shared else Past(past_bytes(STORE_BYTES))
            elif name == "consensus":
                common["pools"] = pools if shared else ConsensusPools()
            one = make_drafter(name, STORE_BYTES, **common)
            first = firsts.setdefault(name, one)
            if shared and isinstance(one, TableDrafter) and one.is_shared and one is not first:
                assert isinstance(first, TableDrafter)
                one.share(first)
            made.append(one)
        market = Market(made)
        market.token_s = math.inf
        markets.append(market)
    return markets


def tokens_a_step(names: Sequence[str], samples: Sequence[Transcript], shared: bool) -> Tally:
    tally = Tally()
    markets = drafters_of(names, len(samples), shared)
    beside = [
        steps_of(market, one, NODES, tally) for market, one in zip(markets, samples, strict=True)
    ]
    for _ in zip_longest(*beside):
        pass
    return tally


BENCH = option("--bench", type=Path, required=True)
ASKS = (
    option("--model"),
    option("--category", default="math_reasoning"),
    option("--temperature", type=float, default=0.8),
)


@script.command(
    BENCH,
    *ASKS,
    option("--samples", type=numbers, default=[4, 8, 16]),
    option("--prompts", type=int, default=8),
    option("--tokens", type=int, default=96),
    option("--branches", action="store_true", help="each from another first token"),
)
def counts(asked: Asked) -> Rows:
    """Tokens a step of each set of drafters, of all prompts together."""
    prompts = sampled(asked, max(asked.samples))
    for members in SETS:
        row: dict[str, object] = {"drafters": "+".join(members)}
        for num in asked.samples:
            for shared in (False, True):
                tallies = [tokens_a_step(members, replies[:num], shared) for replies in prompts]
                steps = sum(tally.steps for tally in tallies)
                tokens = sum(tally.tokens for tally in tallies)
                row[f"n={num} {'shared' if shared else 'each'}"] = f"{tokens / steps:.3f}"
        yield row


@script.command(
    BENCH,
    *ASKS,
    option("--samples", type=numbers, default=[4, 16]),
    option("--at-once", type=int, default=4),
    option("--prompts", type=int, default=2),
    option("--tokens", type=int, default=64),
    option(
        "--sets",
        type=names,
        default=["auto", "auto+stand", "auto+recycling"],
        help="sets of drafters: a+b,c+d",
    ),
    rounds(3),
)
def seconds(asked: Asked) -> Rows:
    """Seconds of all samples of a prompt, drafters learning from nothing but them."""
    with ExitStack() as stack:
        engines = {
            one: stack.enter_context(
                edgespec.load(
                    asked.model,
                    sequences=asked.at_once,
                    context=512,
                    drafters=one.replace("auto", "suffix-automaton,trigram").replace("+", ","),
                )
            )
            for one in asked.sets
        }
        plain = engines[asked.sets[0]]
        curve = plain.cost_curve()
        script.note(f"T(n), ms { ({n: round(1e3 * curve[n], 2) for n in sorted(curve)}) }")
        questions = [
            plain.encode(question["turns"][0])
            for question in read_lines(asked.bench / "spec_bench.jsonl.gz")
            if question["category"] == asked.category
        ][: asked.prompts]
        for num in asked.samples:
            steps: dict[str, list[float]] = {}
            texts: set[str] = set()

            def write(one: str, num: int = num, steps: Any = steps, texts: Any = texts) -> float:
                engine, took = engines.get(one, plain), 0.0
                for ids in questions:
                    start_anew(engine)
                    start = time.perf_counter()
                    replies = engine.generate_batch(
                        [ids], n=num, seed=1, max_tokens=asked.tokens, ignore_eos=True,
                        temperature=asked.temperature, speculation=one != "plain",
                    )  # fmt: skip
                    took += time.perf_counter() - start
                    texts.add(repr([reply.token_ids for reply in replies]))
                    steps.setdefault(one, []).extend(r.stats.tokens_per_step for r in replies)
                return took

            found = alternate(
                {one: partial(write, one) for one in ("plain", *engines)}, asked.rounds
            )
            script.check(len(texts) == len(questions), f"n={num}: the texts are equal")
            for one, taken in found.items():
                yield {
                    "drafters": one,
                    "n": num,
                    "seconds": statistics.median(taken),
                    "plain / this": ratios(found["plain"], taken),
                    "tokens/step": statistics.mean(steps[one]),
                }


if __name__ == "__main__":
    script.run()
