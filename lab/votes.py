"""Do shorter replies answer better, and how many end before a deadline?

    python -m lab.votes quality CORPUS_FOLDER [MODEL] [--each 80] [--samples 8] [--temperature 0.8]
    python -m lab.votes deadline [MODEL] --bench FOLDER [--samples 8] [--at-once 4] [--rounds 3]

`quality`: held-out records of the families that the bundled model does well (`lab.bundled_model`),
each answered by so many samples: how good the answer is (`lab.bundled_model`'s score) and how often
it is right to the letter, of one sample, of the vote of all, of the m shortest's (short-m@k), and
of the first to finish, and the tokens that each takes where all are written in step and the rest
ends with the last that is needed. `deadline`: how many
samples of Spec-Bench's mathematics have ended when a part of the time is over that all would take
plainly, with drafts and without in turns; by the clock, or with `--priced` by the curves in this
script, drafting free.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import edgespec
from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.engine.voting import is_decided
from lab.bundled_model import FAMILIES, held_out, words
from lab.harness import (
    MODEL,
    Asked,
    Rows,
    Script,
    option,
    ratios,
    read_lines,
    rounds,
    start_anew,
    tokens,
)

Key = Callable[[str], Hashable]
script = Script(__doc__)


def floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def fields(text: str) -> Hashable:
    """A JSON object, whatever the order of its fields; None abstains."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except json.JSONDecodeError:
        return None


def said(text: str) -> Hashable:
    return " ".join(words(text)) or None


CURVES = {
    "native": {1: 5.9e-3, 2: 6.2e-3, 4: 7.1e-3, 8: 9.2e-3, 16: 13.4e-3},
    "llamacpp": {1: 5.9e-3, 2: 9.9e-3, 4: 15.6e-3, 8: 29.3e-3, 16: 56.7e-3},
}
"""Seconds of a pass of 336M parameters in Q4_0 (docs/lab/2026-11-23-methods.md), the last as if the
slope stayed.
"""
KEYS: dict[str, Key] = {
    "extract fields as JSON": fields, "answer from a passage": said, "rewrite": said,
}  # fmt: skip
Sample = tuple[int, Hashable, str]
"""Tokens, what it answered, and its text."""


def winner(order: Sequence[Sample]) -> Sample:
    """The first with the most frequent answer, of several the first's; the first if all abstain."""
    counts = Counter(answer for _, answer, _ in order if answer is not None)
    if not counts:
        return order[0]
    most = max(counts.values())
    return next(one for one in order if counts.get(one[1]) == most)


def decided_after(samples: Sequence[Sample]) -> int:
    """Tokens of the longest sample that the vote of all must wait for."""
    for length in sorted({length for length, _, _ in samples}):
        ballots: dict[Hashable, list[int]] = {}
        for place, (taken, answer, _) in enumerate(samples):
            if taken <= length and answer is not None:
                ballots.setdefault(answer, []).append(place)
        if is_decided(ballots, [n for n, (taken, _, _) in enumerate(samples) if taken > length]):
            return length
    return max(length for length, _, _ in samples)


def ways(samples: Sequence[Sample]) -> dict[str, tuple[Sample, float]]:
    """By the name of each way to choose: the reply, and the tokens written until it is known."""

    def until_(length: int) -> float:
        return sum(min(taken, length) for taken, _, _ in samples)

    by_length = sorted(samples, key=lambda one: one[0])
    found: dict[str, tuple[Sample, float]] = {
        "one sample": (samples[0], statistics.mean(taken for taken, _, _ in samples))
    }
    found[f"all {len(samples)} vote"] = winner(samples), until_(decided_after(samples))
    for most in range(len(samples) - 3, 1, -2):
        found[f"shortest {most} vote"] = winner(by_length[:most]), until_(by_length[most - 1][0])
    found["first finished"] = by_length[0], until_(by_length[0][0])
    found["longest"] = by_length[-1], until_(by_length[-1][0])
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
            totals: dict[str, list[float]] = {}
            records = held_out(asked.corpus, family, asked.each)
            for record in records:
                wanted = record["response"].strip()
                replies = engine.generate_batch(
                    [record["prompt"]], n=asked.samples, seed=1, max_tokens=asked.tokens,
                    temperature=asked.temperature,
                )  # fmt: skip
                texts = [one.text.strip() for one in replies]
                lengths = [len(one.token_ids) + (one.finish_reason == "stop") for one in replies]
                samples = list(zip(lengths, map(key, texts), texts, strict=True))
                for way, (chosen, taken) in ways(samples).items():
                    judged = [chosen] if way != "one sample" else samples
                    total = totals.setdefault(way, [0.0, 0.0, 0.0])
                    total[0] += statistics.mean(family.score(one[2], wanted) for one in judged)
                    total[1] += statistics.mean(one[1] == key(wanted) for one in judged)
                    total[2] += taken
            for way, (score, right, taken) in totals.items():
                yield {
                    "family": family.name,
                    "records": len(records),
                    "way": way,
                    "score": f"{score / len(records):.3f}",
                    "right": f"{right / len(records):.1%}",
                    "tokens": f"{taken / len(records):.1f}",
                }


class Priced:
    """Lets an engine's passes take what a curve says, and nothing else take any time."""

    def __init__(self, engine: edgespec.Engine, curve: dict[int, float]) -> None:
        scheduler = engine.scheduler
        scheduler.controller = Controller(
            CostCurve(curve, engine.plan.max_nodes), engine.plan.max_nodes
        )
        for slot in scheduler.take_slots(engine.plan.sequences):
            slot.clock = self.now
            slot.market.attach(slot.sequence, scheduler.controller.curve.table)
        self._seconds = CostCurve(curve, engine.plan.max_nodes).seconds
        self._target, self._forward, self._ahead_s = (
            scheduler.target, scheduler.target.forward, 0.0,
        )  # fmt: skip
        self._target.forward = self.forward  # type: ignore[method-assign]
        self._target.compiled_pass = lambda *_: None  # type: ignore[method-assign]

    def now(self) -> float:
        return self._ahead_s

    def forward(self, parts: Any, *, rows: str = "all") -> Any:
        found = self._forward(parts, rows=rows)  # type: ignore[arg-type]
        if rows == "all":  # and no prompt's
            self._ahead_s += self._seconds(sum(len(tree) for _, tree in parts))
        return found


@script.command(
    MODEL,
    option("--bench", type=Path, required=True),
    option("--prompts", type=int, default=4),
    option("--samples", type=int, default=8),
    option("--at-once", type=int, default=4),
    option("--parts", type=floats, default=[0.25, 0.5, 0.75, 1.0]),
    option("--temperature", type=float, default=0.8),
    option("--drafters", default="suffix-automaton,trigram"),
    option("--priced", choices=list(CURVES), help="by this curve and not by the clock"),
    tokens(64),
    rounds(3),
)
def deadline(asked: Asked) -> Rows:
    """Samples that ended and tokens written before it, of all prompts together."""
    options: dict[str, Any] = {"max_tokens": asked.tokens, "temperature": asked.temperature}
    with edgespec.load(
        asked.model, sequences=asked.at_once, drafters=asked.drafters, context=512
    ) as engine:
        room = engine.plan.context_length - asked.tokens
        found = [
            ids
            for question in read_lines(asked.bench / "spec_bench.jsonl.gz")
            if question["category"] == "math_reasoning"
            and len(ids := engine.encode(question["turns"][0])) < room
        ][: asked.prompts]
        now = time.perf_counter
        if asked.priced:
            now = Priced(engine, CURVES[asked.priced]).now

        def before(limits_s: Sequence[float], speculation: bool) -> tuple[int, int, list[float]]:
            ended, written, taken = 0, 0, []
            for ids, limit_s in zip(found, limits_s, strict=True):
                start_anew(engine)
                start = now()
                stream = engine.stream_batch(
                    [ids], n=asked.samples, seed=1, speculation=speculation, **options
                )
                for _ in stream:
                    if now() - start >= limit_s:
                        break
                taken.append(now() - start)
                stream.close()
                ended += sum(one.finish_reason != "cancelled" for one in stream.replies)
                written += sum(len(one.token_ids) for one in stream.replies)
            return ended, written, taken

        endless = [math.inf] * len(found)
        whole = [before(endless, False)[2] for _ in range(asked.rounds)][-1]
        for part in asked.parts:
            limits_s = [part * seconds for seconds in whole]
            both = [(before(limits_s, True), before(limits_s, False)) for _ in range(asked.rounds)]
            yield {
                "deadline": f"{part:g} of the plain time",
                "samples": asked.samples * len(found),
                "ended, drafts": statistics.mean(one[0] for one, _ in both),
                "ended, plain": statistics.mean(other[0] for _, other in both),
                "tokens, drafts / plain": ratios(
                    [one[1] for one, _ in both], [max(other[1], 1) for _, other in both]
                ),
            }


if __name__ == "__main__":
    script.run()
