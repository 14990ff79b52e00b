"""Does drafting while the target verifies pay?

    python -m lab.overlap real DRAFT.gguf [MODEL] [--threads 1] [--way NAME ...]
    python -m lab.overlap machines [--tokens 3000]
    python -m lab.overlap validate DRAFT.gguf MODEL

`real`: with real threads, here or on a worker. `machines`: what it would bring on machines that are
not here, by a simulator (`lab/overlap_world.py`) with the assumptions in `lab/overlap_sim.py`.
`validate`: what the simulator predicts of two real models beside what they do.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import edgespec
from edgespec.control.overlap.choice import Choice
from edgespec.control.overlap.overlapped_drafter import DraftAhead
from edgespec.drafting.model import guesses
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.system.size import MIB
from lab.cluster import Delay, worker
from lab.harness import (
    MODEL,
    Asked,
    Rows,
    Script,
    Spread,
    market_of,
    option,
    ratios,
    rounds,
    tokens,
)

PROMPTS = (
    ("Tell me a short story about a dog.", 0.0),
    ("How can I sleep better?", 0.0),
    ("Write a tale of a brave mouse.", 0.8),
    ("What do you like about snow?", 0.8),
)
WAYS = ("plain", "in turn", "chain", "branches", "auto")
_OPTIONS = {"in turn": "off", "chain": "on", "branches": "on", "auto": "auto"}


script = Script(__doc__)
MACHINE = (
    option("--backend", default="native", help="native or llamacpp"),
    option("--threads", type=int, default=1),
    option("--worker", type=int, metavar="CORE"),
    option("--away", type=float, default=0.0, metavar="MS"),
    option("--core", type=int),
)
"""Options that say what computes where."""


@contextmanager
def opened(asked: Asked, model: str | None, draft: str) -> Iterator[Engine]:
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
    found = market_of(engine)._sources[-1].drafter
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
        bit_exact = engine.scheduler.target.capabilities.bit_exact_rows
        assert len(texts) == 1 or not bit_exact, "the replies differ"
    return found, last


@script.command(
    option("draft", metavar="DRAFT.gguf"),
    MODEL,
    *MACHINE,
    tokens(96),
    rounds(3),
    option("--way", action="append", choices=WAYS),
)
def real(asked: Asked) -> Rows:
    """The ways of writing take turns, and replies are checked to be equal.

    `plain` without drafts, `in turn` as `--overlap off`, `chain` drafts ahead without branches
    (PEARL), `branches` as `--overlap on`, `auto` chooses. With two cores and `--threads 1` each
    side has one; `--threads 2` lets the target use both while nobody drafts. `--worker` has
    llama.cpp compute the target on a worker of one thread that stays on this core, every byte on
    its way there and back for so many milliseconds, and `--core` keeps everything else on that one.
    """
    ways = tuple(asked.way or WAYS)
    with opened(asked, asked.model, asked.draft) as engine:
        found, last = speeds(engine, ways, asked.tokens, asked.rounds)
        base = found.get("in turn", found[ways[0]])
        for way in ways:
            yield {
                "way": way,
                "tokens/s": Spread.of(found[way]),
                "/ in turn": ratios(found[way], base),
                "tokens/step": statistics.mean(one.stats.tokens_per_step for one in last[way]),
                "overlap": str(last[way][-1].stats.overlap),
            }
        drafter = drafter_of(engine)
        script.note(
            f"a draft takes {1e3 * drafter._drafter._step_s:.2f} ms in turn, "
            f"{1e3 * drafter._pipeline.draft_s:.2f} ms beside the target; "
            f"right {drafter._drafter.mean_rate:.2f}; a draft beside holds the "
            f"target up by {drafter._choice.hold_up:.2f} of its time"
        )


@script.command(tokens(3000))
def machines(asked: Asked) -> Rows:
    """Tokens a second in turn, and times that with chains, branches, and what auto makes of it."""
    from lab import overlap_sim

    yield from overlap_sim.machines(asked.tokens)


@script.command(
    option("draft", metavar="DRAFT.gguf"), option("model"), *MACHINE, tokens(96), rounds(3)
)
def validate(asked: Asked) -> Rows:
    """The profile is taken from the two models: what passes and drafts take, alone and beside each
    other, and where the draft model is right and how sure it is.
    """
    from lab import overlap_sim

    yield from overlap_sim.validate(asked)


if __name__ == "__main__":
    script.run()
