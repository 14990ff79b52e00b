"""Is the text the same with speculation and without? Counts every reply in which it is not.

    python -m lab.equality replies [MODEL] [--prompts 200] [--tokens 48] [--out FILE]
    python -m lab.equality drafters [MODEL] [--prompts 300]
    python -m lab.equality overlap DRAFT.gguf [MODEL] [--prompts 200] [--tokens 16]

Token ids, text and the reason for ending must be equal to those of a reply that was written without
speculation on one thread. All drafts are verified, paying or not. With `--out` finished work is
kept, and a run that was stopped goes on where it was. Exit code 1: a reply differed.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import edgespec
from edgespec.backends.native.target import NativeTarget
from edgespec.drafting.registry import DRAFTERS
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.loading.model_drafters import EARLY_EXIT
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS
from edgespec.memory.plan.sizing import MTP
from lab.harness import MODEL, Asked, Records, Row, Rows, Script, option, tokens
from tests.support.equality import (
    SHAPES,
    SMALL_CHUNK,
    Case,
    compared,
    prompts,
    verify_everything,
)

SEEDS = (1, 2)
BATCH = 8
LATEST_S = 2e-3
PROMPTS = option("--prompts", type=int, default=200)
OUT = option("--out", type=Path, help="keep what is finished here, and go on from it")
Ways = Mapping[str, dict[str, Any]]
"""By a way of writing: whether it was equal, tokens, steps."""
script = Script(__doc__)


@script.command(MODEL, PROMPTS, tokens(48), OUT)
def replies(asked: Asked) -> Rows:
    """One and two threads, three kinds of drafts, prompts whole and in chunks of 7 tokens.

    At temperature 0, 0.7 and 1.2, with two seeds. `drafter`: what the engine's own drafters
    propose. `chain` and `tree` know the reply and have wrong tokens strewn in, so that long drafts
    are accepted and cut short at every place. Every other prompt runs past the reply's end.
    """
    records = Records(asked.out)
    with ExitStack() as stack:
        engines = {
            threads: stack.enter_context(edgespec.load(asked.model, threads=threads))
            for threads in (1, 2)
        }
        cases = _cases(asked.prompts, asked.tokens, (0.0, 0.7, 1.2), SEEDS)
        yield from _totals(
            records.get((asked.model, case), partial(_by_threads, case, engines)) for case in cases
        )


@script.command(MODEL, PROMPTS, tokens(48), OUT)
def drafters(asked: Asked) -> Rows:
    """Each drafter, and all together, alone and in a batch of eight; and a batch as it pays."""
    records = Records(asked.out)
    batch = {"threads": 2, "sequences": BATCH, "context": 1024}
    with ExitStack() as stack:

        def load(**more: Any) -> Engine:
            return stack.enter_context(edgespec.load(asked.model, **more))

        plain, paying = load(threads=1, drafters="none"), load(**batch)
        own = MTP if plain.file.spec.recurrent else EARLY_EXIT  # states leave no pass early
        every = (*DRAFTERS, own)
        sets: dict[str, tuple[str, ...]] = {name: (name,) for name in ("none", *every)}
        sets |= {f"{own} and default": (*BUILT_IN_DRAFTERS, own), "all together": every}
        drafting = {name: load(drafters=",".join(of), **batch) for name, of in sets.items()}
        for engine in drafting.values():
            verify_everything(engine)
        cases = list(_cases(asked.prompts, asked.tokens, (0.0, 0.8), SEEDS))
        found: list[Ways] = []
        for group in _eights(cases):
            key = (asked.model, group)
            found += records.get(key, partial(_in_batches, group, plain, paying, drafting))
        yield from _totals(found)


@script.command(option("draft", metavar="DRAFT.gguf"), MODEL, PROMPTS, tokens(16))
def overlap(asked: Asked) -> Rows:
    """A draft model that works while the target verifies: alone, beside each drafter, and all.

    Every pass of either model takes up to 2 ms longer by chance, so that drafts come early, late
    and too late.
    """
    sets = {"alone": "none"} | {name: name for name in (*DRAFTERS, EARLY_EXIT)}
    sets["all"] = ",".join((*DRAFTERS, EARLY_EXIT))
    with ExitStack() as stack:

        def load(**more: Any) -> Engine:
            return stack.enter_context(edgespec.load(asked.model, threads=1, **more))

        plain = load()
        drafting = {
            name: load(backend="native", drafters=of, draft_model=asked.draft, overlap="on")
            for name, of in sets.items()
        }
        _delay_passes(seed=3)
        yield from _totals(
            _by_engine(case, plain, drafting)
            for case in _cases(asked.prompts, asked.tokens, (0.0, 0.8), SEEDS[:1])
        )


def _cases(
    count: int, num_tokens: int, temperatures: tuple[float, ...], seeds: tuple[int, ...]
) -> Iterator[Case]:
    """Every other prompt runs past the reply's end."""
    for number, prompt in enumerate(islice(prompts(), count)):
        for temperature, seed in product(temperatures, seeds):
            yield Case(prompt, temperature, seed, num_tokens, ignore_eos=bool(number % 2))


def _eights(cases: list[Case]) -> Iterator[list[Case]]:
    """Of one temperature and seed each."""
    for alike in (cases[first::4] for first in range(4)):
        yield from (alike[first : first + BATCH] for first in range(0, len(alike), BATCH))


def _by_threads(case: Case, engines: dict[int, Engine]) -> Ways:
    expected = case.plain(engines[1])
    ways = {"plain, 2 threads": compared(expected, case.plain(engines[2]))}
    for (threads, engine), shape, chunk in product(engines.items(), SHAPES, (None, SMALL_CHUNK)):
        name = f"{shape}, {threads} threads, prompt {'in chunks' if chunk else 'whole'}"
        ways[name] = compared(expected, case.speculative(engine, shape, chunk, expected))
    return ways


def _by_engine(case: Case, plain: Engine, drafting: dict[str, Engine]) -> Ways:
    expected = case.plain(plain)
    return {
        name: compared(expected, case.speculative(engine, "drafter", None, expected))
        for name, engine in drafting.items()
    }


def _in_batches(
    group: list[Case], plain: Engine, paying: Engine, drafting: dict[str, Engine]
) -> list[Ways]:
    expected = [case.plain(plain) for case in group]
    ways = {f"as it pays, {BATCH} at once": _together(group, paying)}
    for name, engine in drafting.items():
        ways[f"{name}, alone"] = [
            case.speculative(engine, "drafter", None, reply)
            for case, reply in zip(group, expected, strict=True)
        ]
        ways[f"{name}, {BATCH} at once"] = _together(group, engine)
    return [
        {way: compared(reply, written[place]) for way, written in ways.items()}
        for place, reply in enumerate(expected)
    ]


def _together(group: list[Case], engine: Engine) -> list[Reply]:
    return engine.generate_batch([case.request(engine) for case in group])


def _delay_passes(seed: int) -> None:
    """Let every pass of every native model take longer by chance."""
    forward, rng = NativeTarget._forward, random.Random(seed)

    def late(self: NativeTarget, *arguments: Any) -> Any:
        if rng.random() < 0.5:
            time.sleep(rng.random() * LATEST_S)
        return forward(self, *arguments)

    setattr(NativeTarget, "_forward", late)  # noqa: B010 - typed as a method


def _totals(found: Iterator[Ways] | list[Ways]) -> Iterator[Row]:
    """A row for each way of writing, and the verdict over all."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    num_replies = 0
    for ways in found:
        num_replies += 1
        for way, one in ways.items():
            for place, value in enumerate((1, not one["equal"], one["tokens"], one["steps"])):
                counts[way][place] += value
    for way, (number, wrong, written, steps) in counts.items():
        yield {
            "drafts": way,
            "replies": number,
            "mismatches": wrong,
            "tokens/step": written / max(steps, 1),
        }
    number, wrong = (sum(row[place] for row in counts.values()) for place in (0, 1))
    script.check(wrong == 0, f"{number} comparisons of {num_replies} replies, {wrong} mismatches")


if __name__ == "__main__":
    script.run()
