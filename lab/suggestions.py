"""Which completions may be stopped before their end, and what does that save?

    python -m lab.suggestions --bench FOLDER [--k 3,5,10] [--tokens 24] [--within 1,2,4,6,8]

BENCH holds humaneval.jsonl.gz. Each reference solution is cut at `--cuts` places; `k` completions
are written as `Engine.suggest` does, and rules are played on their log-probabilities: `bound` stops
one whose mean can no longer reach that of the best that has ended, `d` one whose sum is more than d
nats below the best at its length. `best` is the completion whose mean is highest, `right` the one
that agrees with the reference longest, if it is stopped before it errs. Passes are priced by the
T(n) in this script.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

import edgespec
from edgespec.engine.suggestions import hopeless_lengths
from edgespec.errors import ContextOverflowError
from edgespec.models.tokenizers.tokenizer import Tokenizer
from lab.harness import Asked, Rows, Script, numbers, option, read_lines

NATIVE = {1: 5.9, 2: 6.2, 4: 7.1, 8: 9.2}
LLAMACPP = {1: 1.0, 2: 1.67, 4: 2.65, 8: 4.97}
"""T(n) of 336M parameters in Q4_0 on two cores, as recorded (docs/lab/2026-11-23-methods.md)."""
Sums = Sequence[Sequence[float]]
Rule = Callable[[Sums], list[int]]
"""From the sums of a case, how many tokens to keep of each."""
script = Script(__doc__)


class Case(NamedTuple):
    """The completions of one place, as far as `--tokens`."""

    sums: list[list[float]]
    """Of log-probabilities, after each token."""
    agreement: list[int]
    """Tokens that each begins with as the reference does."""


def floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def agreeing(tokenizer: Tokenizer, ids: Sequence[int], rest: str) -> int:
    """How many tokens say what a text begins with."""
    counts = range(len(ids), 0, -1)
    return next((n for n in counts if rest.startswith(tokenizer.decode(ids[:n]))), 0)


def cases(engine: edgespec.Engine, asked: Asked, most: int) -> Iterator[Case]:
    rng = random.Random(5)
    for record in read_lines(asked.bench / "humaneval.jsonl.gz"):
        solution = record["canonical_solution"]
        for _ in range(asked.cuts):
            place = rng.randrange(1, max(len(solution) - 8, 2))
            before, rest = record["prompt"] + solution[:place], solution[place:]
            try:
                yield completed(engine, before, rest, asked.tokens, most)
            except ContextOverflowError:
                continue


def completed(engine: edgespec.Engine, before: str, rest: str, num_tokens: int, most: int) -> Case:
    ids = engine.tokenizer.encode(before)
    first = engine.generate(ids, max_tokens=1, temperature=0.0, logprobs=most, ignore_eos=True)
    assert first.logprobs is not None
    starts = [one for one in first.logprobs[0].top if one[0] not in engine.tokenizer.end_ids]
    replies = engine.generate_batch(
        [[*ids, token] for token, _ in starts],
        max_tokens=num_tokens - 1, temperature=0.0, logprobs=0,
    )  # fmt: skip
    sums, agreement = [], []
    for (token, logprob), reply in zip(starts, replies, strict=True):
        sums.append(list(accumulate([logprob, *(at.logprob for at in reply.logprobs or [])])))
        agreement.append(agreeing(engine.tokenizer, [token, *reply.token_ids], rest))
    return Case(sums, agreement)


def lengths_within(within: float, sums: Sums) -> list[int]:
    return hopeless_lengths(sums, [False] * len(sums), within)


def bounded_lengths(most: int, sums: Sums) -> list[int]:
    """Tokens of each until its mean cannot reach the best ended one's, all a token a step."""
    means = [one[-1] / len(one) for one in sums]
    found = []
    for place, one in enumerate(sums):
        kept = len(one)
        for length in range(1, len(one)):
            ended = [
                mean for other, mean in enumerate(means)
                if other != place and len(sums[other]) <= length < most
            ]  # fmt: skip
            if ended and one[length - 1] / most < max(ended):
                kept = length
                break
        found.append(kept)
    return found


def seconds(lengths: Sequence[int], curve: dict[int, float]) -> float:
    """Of passes in step over as many as are still written."""
    sizes = sorted(curve)
    alive = [sum(n > step for n in lengths) for step in range(max(lengths, default=0))]
    if not alive:
        return 0.0
    return float(np.interp(alive, sizes, [curve[n] for n in sizes]).sum())


@script.command(
    option("--bench", type=Path, required=True),
    option("--model"),
    option("--k", type=numbers, default=[3, 5, 10]),
    option("--tokens", type=int, default=24),
    option("--cuts", type=int, default=2),
    option("--within", type=floats, default=[1, 2, 3, 4, 6, 8, 12]),
)
def rules(asked: Asked) -> Rows:
    """What each rule saves of tokens and of passes, and how often it stops what it should not."""
    with edgespec.load(asked.model, sequences=8) as engine:
        found = list(cases(engine, asked, max(asked.k)))
    script.note(f"{len(found)} places")
    played: dict[str, Rule] = {"bound": partial(bounded_lengths, asked.tokens)}
    for within in asked.within:
        played[f"{within:g} nats"] = partial(lengths_within, within)
    for k in asked.k:
        for name, rule in played.items():
            yield {"k": k, "rule": name} | summary(found, k, rule)


def summary(found: Sequence[Case], k: int, rule: Rule) -> dict[str, str]:
    written = stopped = best = right = truths = 0
    here, away = np.zeros(2), np.zeros(2)
    for case in found:
        sums, agreement = case.sums[:k], case.agreement[:k]
        whole, kept = [len(one) for one in sums], rule(sums)
        cut = [one < all_ for one, all_ in zip(kept, whole, strict=True)]
        best += cut[max(range(len(sums)), key=lambda n: sums[n][-1] / whole[n])]
        whole = [length - 1 for length in whole]  # first tokens are one pass for all
        kept = [min(pair) for pair in zip(kept, whole, strict=True)]  # the next tells of an end
        written, stopped = written + sum(whole), stopped + sum(whole) - sum(kept)
        if max(agreement):
            truths += 1
            longest = max(range(len(sums)), key=lambda n: agreement[n])
            right += rule(sums)[longest] < agreement[longest]
        here += [seconds(kept, NATIVE), seconds(whole, NATIVE)]
        away += [seconds(kept, LLAMACPP), seconds(whole, LLAMACPP)]
    return {
        "tokens saved": f"{stopped / written:.1%}",
        "best stopped": f"{best / len(found):.1%}",
        "right stopped": f"{right / truths:.1%} of {truths}",
        "seconds saved, native": f"{1 - here[0] / here[1]:.1%}",
        "llama.cpp": f"{1 - away[0] / away[1]:.1%}",
    }


if __name__ == "__main__":
    script.run()
