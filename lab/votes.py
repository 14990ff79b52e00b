"""Do shorter replies answer better, and how many end before a deadline?

    python -m lab.votes quality CORPUS_FOLDER [MODEL] [--each 80] [--samples 8] [--temperature 0.8]
    python -m lab.votes deadline [MODEL] --bench FOLDER [--samples 8] [--at-once 4] [--rounds 3]

`quality`: held-out records of the families that the bundled model does well (`lab.bundled_model`),
each answered by so many samples: the share that is right of one sample, of the vote of all, of
those of the m shortest (short-m@k), and of the first to finish, and the tokens that each takes
where all are written in step and the rest ends with the last that is needed. `deadline`: how many
samples of Spec-Bench's mathematics have ended when a part of the time is over that all would take
plainly, with drafts and without in turns.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import edgespec
from edgespec.engine.voting import is_decided, until
from lab.bundled_model import FAMILIES, held_out, words
from lab.harness import (
    MODEL,
    Asked,
    Rows,
    Script,
    alternate,
    names,
    option,
    ratios,
    read_lines,
    rounds,
    start_anew,
    tokens,
)

Key = Callable[[str], Hashable]
script = Script(__doc__)


def fields(text: str) -> Hashable:
    """A JSON object, whatever the order of its fields; None abstains."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except json.JSONDecodeError:
        return None


def said(text: str) -> Hashable:
    return " ".join(words(text)) or None


KEYS: dict[str, Key] = {
    "extract fields as JSON": fields, "answer from a passage": said, "rewrite": said,
}  # fmt: skip
Sample = tuple[int, Hashable]
"""Tokens, and what it answered."""


def winner(order: Sequence[Sample]) -> Hashable:
    """The most frequent answer, of several the first's."""
    counts = Counter(answer for _, answer in order if answer is not None)
    return max(counts, key=lambda answer: counts[answer], default=None)


def decided_after(samples: Sequence[Sample]) -> int:
    """Tokens of the longest sample that the vote of all must wait for."""
    for length in sorted({length for length, _ in samples}):
        ballots: dict[Hashable, list[int]] = {}
        for place, (taken, answer) in enumerate(samples):
            if taken <= length and answer is not None:
                ballots.setdefault(answer, []).append(place)
        if is_decided(ballots, [n for n, (taken, _) in enumerate(samples) if taken > length]):
            return length
    return max(length for length, _ in samples)


def ways(samples: Sequence[Sample]) -> dict[str, tuple[Hashable, int]]:
    """By the name of each way to choose: the answer, and the tokens written until it is known."""

    def until_(length: int) -> int:
        return sum(min(taken, length) for taken, _ in samples)

    by_length = sorted(samples, key=lambda one: one[0])
    found = {f"all {len(samples)} vote": (winner(samples), until_(decided_after(samples)))}
    for most in range(len(samples) - 3, 1, -2):
        found[f"shortest {most} vote"] = winner(by_length[:most]), until_(by_length[most - 1][0])
    found["first finished"] = by_length[0][1], until_(by_length[0][0])
    found["longest"] = by_length[-1][1], until_(by_length[-1][0])
    return found


@script.command(
    option("corpus", type=Path),
    MODEL,
    option("--each", type=int, default=80, help="records of each family"),
    option("--samples", type=int, default=8),
    option("--temperature", type=float, default=0.8),
    tokens(96),
)
def quality(asked: Asked) -> Rows:
    """The share of answers that are right, whole, and tokens a question, of each way to choose."""
    with edgespec.load(asked.model, sequences=asked.samples) as engine:
        for family in FAMILIES:
            if (key := KEYS.get(family.name)) is None:
                continue
            right: Counter[str] = Counter()
            taken: Counter[str] = Counter()
            records = held_out(asked.corpus, family, asked.each)
            for record in records:
                wanted = key(record["response"].strip())
                replies = engine.generate_batch(
                    [record["prompt"]], n=asked.samples, seed=1, max_tokens=asked.tokens,
                    temperature=asked.temperature,
                )  # fmt: skip
                samples = [
                    (len(one.token_ids) + (one.finish_reason == "stop"), key(one.text.strip()))
                    for one in replies
                ]
                right["one sample"] += sum(answer == wanted for _, answer in samples)
                taken["one sample"] += sum(length for length, _ in samples)
                for way, (answer, count) in ways(samples).items():
                    right[way] += answer == wanted
                    taken[way] += count
            for way in right:
                asks = len(records) * (asked.samples if way == "one sample" else 1)
                yield {
                    "family": family.name,
                    "records": len(records),
                    "way": way,
                    "right": f"{right[way] / asks:.1%}",
                    "tokens": f"{taken[way] / asks:.1f}",
                }


@script.command(
    MODEL,
    option("--bench", type=Path, required=True),
    option("--prompts", type=int, default=4),
    option("--samples", type=int, default=8),
    option("--at-once", type=int, default=4),
    option("--parts", type=names, default=["0.25", "0.5", "0.75"]),
    option("--temperature", type=float, default=0.8),
    option("--drafters", default="auto"),
    tokens(64),
    rounds(3),
)
def deadline(asked: Asked) -> Rows:
    """Samples that ended and tokens written before it, of all prompts together."""
    options: dict[str, Any] = {"max_tokens": asked.tokens, "temperature": asked.temperature}
    with edgespec.load(
        asked.model, sequences=asked.at_once, drafters=asked.drafters, context=512
    ) as engine:
        found: list[list[int]] = []
        for question in read_lines(asked.bench / "spec_bench.jsonl.gz"):
            if question["category"] == "math_reasoning" and len(found) < asked.prompts:
                ids = engine.encode(question["turns"][0])
                if len(ids) + asked.tokens < engine.plan.context_length:
                    found.append(ids)

        def before(deadline_s: float | None, speculation: bool) -> tuple[int, int, float]:
            ended = written = 0
            start = time.perf_counter()
            for ids in found:
                start_anew(engine)
                stream = engine.stream_batch(
                    [ids], n=asked.samples, seed=1, speculation=speculation, **options
                )
                for _ in until(None if deadline_s is None else deadline_s / len(found), stream):
                    pass
                stream.close()
                ended += sum(one.finish_reason != "cancelled" for one in stream.replies)
                written += sum(len(one.token_ids) for one in stream.replies)
            return ended, written, time.perf_counter() - start

        before(None, False)
        whole_s = statistics.median(before(None, False)[2] for _ in range(asked.rounds))
        for part in asked.parts:
            counts: dict[bool, list[tuple[int, int]]] = {True: [], False: []}

            def measured(speculation: bool, limit_s: float, counts: Any) -> float:
                ended, written, _ = before(limit_s, speculation)
                counts[speculation].append((ended, written))
                return max(written, 1)

            limit_s = float(part) * whole_s
            speeds = alternate(
                {
                    "drafts": partial(measured, True, limit_s, counts),
                    "plain": partial(measured, False, limit_s, counts),
                },
                asked.rounds,
            )
            yield {
                "deadline": f"{part} of {whole_s:.2f} s",
                "of": asked.samples * len(found),
                "ended, drafts": statistics.mean(ended for ended, _ in counts[True][1:]),
                "ended, plain": statistics.mean(ended for ended, _ in counts[False][1:]),
                "tokens, drafts / plain": ratios(speeds["drafts"], speeds["plain"]),
            }


if __name__ == "__main__":
    script.run()
