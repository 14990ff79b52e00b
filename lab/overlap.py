"""Drafting in turn against drafting while the target verifies, with real threads.

    python benchmarks/overlap.py DRAFT.gguf [MODEL] [--backend native|llamacpp] [--threads 1]
        [--worker CORE [--away MS]] [--core CORE] [--tokens 96] [--rounds 3] [--way NAME ...]

The ways of writing take turns, and replies are checked to be equal: "plain" without drafts, "in
turn" as `--overlap off`, "chain" drafts ahead without branches (PEARL), "branches" as `--overlap
on`, "auto" chooses. With two cores and `--threads 1` each side has one; `--threads 2` lets the
target use both while nobody drafts. `--worker` has llama.cpp compute the target on a worker of one
thread that stays on this core, every byte on its way there and back for so many milliseconds, and
`--core` keeps everything else on that one. Figures are medians over rounds of tokens a second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.workers import Delay, worker
from edgespec.control.overlap.choice import Choice
from edgespec.control.overlap.overlapped_drafter import DraftAhead
from edgespec.drafting.model import guesses
from edgespec.engine.engine import Engine
from edgespec.engine.request import Reply
from edgespec.system.size import MIB

PROMPTS = (
    ("Tell me a short story about a dog.", 0.0),
    ("How can I sleep better?", 0.0),
    ("Write a tale of a brave mouse.", 0.8),
    ("What do you like about snow?", 0.8),
)
WAYS = ("plain", "in turn", "chain", "branches", "auto")
_OPTIONS = {"in turn": "off", "chain": "on", "branches": "on", "auto": "auto"}


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Options that say what computes where."""
    parser.add_argument("--backend", default="native")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--worker", type=int, metavar="CORE")
    parser.add_argument("--away", type=float, default=0.0, metavar="MS")
    parser.add_argument("--core", type=int)


@contextmanager
def opened(asked: argparse.Namespace, model: str | None, draft: str) -> Iterator[Engine]:
    """An engine with a draft model, on the machine that was asked for."""
    with ExitStack() as stack:
        backend, workers, cores = asked.backend, None, os.sched_getaffinity(0)
        if asked.worker is not None:
            assert model is not None, "name the MODEL that a worker is to compute"
            os.sched_setaffinity(0, {asked.worker})  # the worker inherits it
            port = stack.enter_context(worker(Path(model).stat().st_size + 400 * MIB, 1))
            port = Delay(port, asked.away / 1e3).port if asked.away else port
            backend, workers = "llamacpp", f"127.0.0.1:{port}"
        os.sched_setaffinity(0, cores if asked.core is None else {asked.core})
        yield stack.enter_context(
            edgespec.load(
                model, backend=backend, threads=asked.threads, drafters="none", draft_model=draft,
                context=1024, workers=workers,
            )
        )  # fmt: skip


def drafter_of(engine: Engine) -> DraftAhead:
    """The engine's draft model."""
    found = engine._session.market._sources[-1].drafter
    assert isinstance(found, DraftAhead), "load with a draft model, for one text at a time"
    return found


@contextmanager
def way_of(engine: Engine, way: str, choices: dict[str, Choice]) -> Iterator[None]:
    """Write like this for a while; what a way has chosen for itself stays."""
    drafter, second = drafter_of(engine), guesses.LEAST_SECOND
    if way != "plain":
        drafter._choice = choices.setdefault(
            way, Choice(_OPTIONS[way], drafter._choice.slowdown, drafter._choice.hold_up)
        )
    guesses.LEAST_SECOND = 2.0 if way == "chain" else second
    try:
        yield
    finally:
        guesses.LEAST_SECOND = second


def write(engine: Engine, way: str, tokens: int, choices: dict[str, Choice]) -> list[Reply]:
    """All replies, this way."""
    with way_of(engine, way, choices):
        return [
            engine.generate(
                prompt,
                max_tokens=tokens,
                temperature=temperature,
                seed=5,
                ignore_eos=True,
                speculation=way != "plain",
            )
            for prompt, temperature in PROMPTS
        ]


def speed(replies: list[Reply]) -> float:
    """Tokens a second of them all."""
    seconds = sum(reply.stats.output_tokens / reply.stats.tokens_per_second for reply in replies)
    return sum(reply.stats.output_tokens for reply in replies) / seconds


def speeds(
    engine: Engine, ways: tuple[str, ...], tokens: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[Reply]]]:
    """Tokens a second by way and round, and each way's last replies."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    last: dict[str, list[Reply]] = {}
    choices: dict[str, Choice] = {}
    for turn in range(rounds + 1):
        for way in ways:
            last[way] = write(engine, way, tokens, choices)
            if turn:  # the first is to learn in
                found[way].append(speed(last[way]))
        texts = {repr([reply.token_ids for reply in replies]) for replies in last.values()}
        bit_exact = engine._target.capabilities.bit_exact_rows
        assert len(texts) == 1 or not bit_exact, "the replies differ"
    return found, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("draft")
    parser.add_argument("model", nargs="?")
    add_machine(parser)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", action="append", choices=WAYS)
    asked = parser.parse_args()
    ways = tuple(asked.way or WAYS)
    with opened(asked, asked.model, asked.draft) as engine:
        print("T(n), ms:", {n: round(1e3 * s, 2) for n, s in engine.cost_curve().items()})
        found, last = speeds(engine, ways, asked.tokens, asked.rounds)
        base = found.get("in turn", found[ways[0]])
        print(f"{'':<10}{'tokens/s':>10}{'/ in turn':>11} (spread)     {'a step':>8}")
        for way in ways:
            ratios = [one / other for one, other in zip(found[way], base, strict=True)]
            steps = statistics.mean(reply.stats.tokens_per_step for reply in last[way])
            print(
                f"{way:<10}{statistics.median(found[way]):>10.1f}"
                f"{statistics.median(ratios):>10.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"
                f"{steps:>10.2f}  {last[way][-1].stats.overlap}"
            )
        drafter = drafter_of(engine)
        print(
            f"a draft takes {1e3 * drafter._drafter._step_s:.2f} ms in turn, "
            f"{1e3 * drafter._pipeline.draft_s:.2f} ms beside the target; "
            f"right {drafter._drafter.mean_rate:.2f}; a draft beside holds the "
            f"target up by {drafter._choice.hold_up:.2f} of its time"
        )


if __name__ == "__main__":
    main()
