"""What does typical acceptance bring, and what does it cost the text?

    python -m lab.typical [MODEL] --bench FOLDER [--prompts 26] [--tokens 96] [--percents 50,80,100]
        [--rules exact,typical] [--sets 2]

BENCH holds spec_bench.jsonl.gz. The same questions by each rule, every draft verified, so tokens a
step are counts. Of the text: kept, the part of a reply before it first differs from the one that
`exact` writes with the same seed; nats, the mean of the model's own -log p of each token (the row
`exact` has what it would write by itself); and the part of its runs of four tokens that came before
in the same reply. Rules: `typical` is the package's, whose bar falls with the entropy, and
`typical-P` the same with P percent in place of 9; `flat-P` accepts what has more than P percent,
whatever the entropy; `switch-P` is `typical` where the entropy is above P hundredths of a nat, and
`exact` below.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

import numpy as np

import edgespec
from edgespec.backends.passes import Logits
from edgespec.engine.reply import Reply
from edgespec.errors import ContextOverflowError
from edgespec.verification import typical as package
from edgespec.verification.match import Verifier
from lab.harness import MODEL, Asked, Rows, Script, names, numbers, option, read_lines
from tests.support.equality import verify_everything

RUN = 4
SETS = ("suffix-automaton,trigram", "suffix-automaton,trigram,early-exit")
script = Script(__doc__)


def repeated(ids: list[int]) -> float:
    """The part of runs of four tokens that came before."""
    runs = [tuple(ids[place : place + RUN]) for place in range(len(ids) - RUN + 1)]
    return 1 - len(set(runs)) / max(len(runs), 1)


class Flat(package.TypicalVerifier):
    """A bar that is the same at every entropy."""

    def _judge(self, row: Logits, position: int) -> tuple[Logits, float]:
        return super()._judge(row, position)[0], math.log(package.EPSILON)


class Switch(package.TypicalVerifier):
    """The model's own token alone, where it is sure."""

    sure = 0.0

    def _judge(self, row: Logits, position: int) -> tuple[Logits, float]:
        log_shares, bar = super()._judge(row, position)
        shares = np.exp(log_shares)
        if -float(shares @ np.where(shares > 0, log_shares, 0)) > self.sure:
            return log_shares, bar
        root, no_parent = np.zeros(1, np.int32), np.full(1, -1, np.int16)
        own = Verifier.verify(self, row[None], root, no_parent, (), position).bonus
        alone = np.full_like(row, -np.inf)
        alone[own] = 0.0
        return alone, bar


KINDS = {"typical": package.TypicalVerifier, "flat": Flat, "switch": Switch}


@contextmanager
def ruled(rule: str) -> Iterator[str]:
    """Let `typical` mean this rule; yields what to ask the engine for."""
    name, _, percent = rule.partition("-")
    before = package.TypicalVerifier, package.EPSILON, package.DELTA
    if percent and name != "switch":
        package.EPSILON = int(percent) / 100
        package.DELTA = math.sqrt(package.EPSILON)
    Switch.sure = int(percent or 0) / 100
    package.TypicalVerifier = KINDS.get(name, before[0])  # type: ignore[misc]
    try:
        yield "exact" if name == "exact" else "typical"
    finally:
        package.TypicalVerifier, package.EPSILON, package.DELTA = before  # type: ignore[misc]


def kept(found: list[int], plain: list[int]) -> float:
    """The part of a reply before it first differs."""
    pairs = zip(found, plain, strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)]) / max(len(plain), 1)


@script.command(
    MODEL,
    option("--bench", type=Path, required=True),
    option("--prompts", type=int, default=26),
    option("--tokens", type=int, default=96),
    option("--percents", type=numbers, default=[50, 80, 100], help="temperatures times 100"),
    option("--rules", type=names, default=["exact", "typical"]),
    option("--sets", type=int, default=len(SETS), help="how many sets of drafters"),
)
def typical(asked: Asked) -> Rows:
    """Questions spread over all categories."""
    questions = list(read_lines(asked.bench / "spec_bench.jsonl.gz"))
    questions = questions[:: max(len(questions) // asked.prompts, 1)]
    texts = [question["turns"][0] for question in questions]
    for drafters in SETS[: asked.sets]:
        for percent in asked.percents:
            plain: list[list[int]] = []
            for rule in asked.rules:
                replies = written(asked, texts, drafters, rule, percent / 100)
                steps = sum(reply.stats.steps for reply in replies)
                told = [one.logprob for reply in replies for one in reply.logprobs or []]
                ids = [reply.token_ids for reply in replies]
                plain = plain or ids
                yield {
                    "drafters": drafters,
                    "temperature": percent / 100,
                    "rule": rule,
                    "tokens/step": f"{sum(map(len, ids)) / steps:.3f}",
                    "kept": f"{statistics.mean(map(kept, ids, plain)):.3f}",
                    "nats": f"{-statistics.mean(told):.3f}",
                    "repeated": f"{statistics.mean(map(repeated, ids)):.3f}",
                }


def written(
    asked: Asked, texts: list[str], drafters: str, rule: str, temperature: float
) -> list[Reply]:
    """Replies of an engine that has written none before, so that none is drafted from another
    rule's.
    """
    replies = []
    with (
        edgespec.load(asked.model, drafters=drafters, max_nodes=9) as engine,
        ruled(rule) as accept,
    ):
        verify_everything(engine)
        for seed, text in enumerate(texts):
            with suppress(ContextOverflowError):
                reply = engine.generate(
                    text,
                    max_tokens=asked.tokens,
                    seed=seed,
                    temperature=temperature,
                    accept=accept,
                    logprobs=0,
                    ignore_eos=True,
                )
                replies.append(reply)
    return replies


if __name__ == "__main__":
    script.run()
