"""What do tables that all samples of a prompt share bring?

    python -m lab.samples --bench FOLDER [--samples 4,8,16] [--prompts 8] [--tokens 96]

BENCH holds spec_bench.jsonl.gz. The model answers its questions of mathematics many times over at
`--temperature`; the samples are then replayed beside each other, a step of each in turn, with every
drafter asked and all that is drafted verified. So figures are counts, which no clock decides about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

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
from lab.harness import Asked, Rows, Script, numbers, option, read_lines

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
            ids, replies = engine.encode(question["turns"][0]), []
            try:
                for seed in range(most):
                    reply = engine.generate(
                        ids, max_tokens=asked.tokens, temperature=asked.temperature, seed=seed,
                        logprobs=TOP, ignore_eos=True,
                    )  # fmt: skip
                    likely = np.array([at.top for at in reply.logprobs or []])
                    top = TopTokens(
                        likely[:, :, 0].astype(np.int32), likely[:, :, 1].astype(np.float32)
                    )
                    params = SamplingParams(temperature=asked.temperature, seed=seed)
                    replies.append(Transcript(list(ids), reply.token_ids, top, params))
            except ContextOverflowError:
                continue
            found.append(replies)
    return found


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


@script.command(
    option("--bench", type=Path, required=True),
    option("--model"),
    option("--category", default="math_reasoning"),
    option("--samples", type=numbers, default=[4, 8, 16]),
    option("--prompts", type=int, default=8),
    option("--tokens", type=int, default=96),
    option("--temperature", type=float, default=0.8),
)
def samples(asked: Asked) -> Rows:
    """Tokens a step of each set of drafters, of all prompts together."""
    prompts = sampled(asked, max(asked.samples))
    for names in SETS:
        row: dict[str, object] = {"drafters": "+".join(names)}
        for num in asked.samples:
            for shared in (False, True):
                tallies = [tokens_a_step(names, replies[:num], shared) for replies in prompts]
                steps = sum(tally.steps for tally in tallies)
                tokens = sum(tally.tokens for tally in tallies)
                row[f"n={num} {'shared' if shared else 'each'}"] = f"{tokens / steps:.3f}"
        yield row


if __name__ == "__main__":
    script.run()
