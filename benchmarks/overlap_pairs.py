"""Two real models: what they take, and what the simulator predicts of them beside what they do."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import overlap as real
from benchmarks.overlap_world import NODES, Profile, Trace, play
from edgespec.backends.passes import TokenTree
from edgespec.control.overlap.profile import measure
from edgespec.drafting.model.small_model import MOST_NODES
from edgespec.engine.engine import Engine

TRIES = 3


def recorded(engine: Engine, tokens: int) -> list[Trace]:
    """Real replies, and what the real draft model says at each of their places."""
    traces = []
    drafter = real.drafter_of(engine)._pipeline.rest()
    for prompt, temperature in real.PROMPTS:
        request = engine.request(prompt, temperature=temperature, seed=5, ignore_eos=True)
        ids = list(request.prompt_ids)
        reply = engine.generate(
            ids, max_tokens=tokens, temperature=temperature, seed=5, ignore_eos=True,
            speculation=False,
        )  # fmt: skip
        drafter.begin(request.sampling)
        drafter.reset(ids)
        draws = []
        for token in reply.token_ids:
            (draw,) = drafter.look([[]])
            assert draw is not None
            draws.append(draw)
            drafter.extend([token])
        traces.append(Trace(ids, reply.token_ids, draws))
    return traces


def measured(engine: Engine, plain_s: float) -> Profile:
    """The profile of two real models; `plain_s` are the seconds of a token of plain decoding."""
    ahead, sequence = real.drafter_of(engine), engine.scheduler.slots[0].sequence
    drafter = ahead._pipeline.rest()

    def timed(forward: Callable[[TokenTree], Any], size: int) -> float:
        start = time.perf_counter()
        forward(TokenTree.chain([0] * size))
        return time.perf_counter() - start

    target, small = sequence.target, drafter._small
    many: dict[int, list[float]] = {size: [] for size in range(1, NODES + 1)}
    few: dict[int, list[float]] = {size: [] for size in range(1, MOST_NODES + 1)}
    # All sizes, as passes go up in steps on some engines; in turns, as in a step, because each
    # model finds the other's weights in the cache.
    for _ in range(TRIES):
        for size, seconds in many.items():
            part = (size - 1) % MOST_NODES + 1
            few[part].append(
                timed(lambda tree: small.target.forward(((small, tree),), rows="last"), part)
            )
            seconds.append(timed(lambda tree: target.forward(((sequence, tree),)), size))
    passes, drafts = (
        {size: statistics.median(times) for size, times in found.items()} for found in (many, few)
    )
    found = measure(sequence, drafter, ahead._threads, ahead._draft_threads)
    small.truncate(0)
    drafter._fed.clear()
    slowdown = found.slowdown if ahead._threads else 1.0
    step_s = max(plain_s - passes[1], 0.0)
    curve = engine.cost_curve()
    return Profile("here", passes, drafts, 0.0, slowdown, found.hold_up, step_s, curve)


def validate(asked: argparse.Namespace) -> None:
    """Print what is predicted of a real pair beside what it does."""
    with real.opened(asked, asked.model, asked.validate) as engine:
        traces = recorded(engine, asked.tokens)
        ways = ("plain", "in turn", "chain", "branches")
        before = measured(engine, 0.0)
        found, _ = real.speeds(engine, ways, asked.tokens, asked.rounds)
        told = measured(engine, 1.0 / statistics.median(found["plain"]))
        pairs = ((told.passes, before.passes), (told.drafts, before.drafts))
        both = [{n: (one[n] + other[n]) / 2 for n in one} for one, other in pairs]
        told = replace(
            told, passes=both[0], drafts=both[1], hold_up=(told.hold_up + before.hold_up) / 2,
            step_s=max(1.0 / statistics.median(found["plain"]) - both[0][1], 0.0),
        )  # fmt: skip
        print("T(n), ms:", {n: round(1e3 * s, 2) for n, s in told.passes.items()})
        print("drafts, ms:", {n: round(1e3 * s, 2) for n, s in told.drafts.items()})
        print(f"slowdown {told.slowdown:.2f}, hold-up {told.hold_up:.2f}")
        print(f"{'':<12}{'predicted/s':>12}{'real/s':>10}{'off by':>9}   (real, lowest-highest)")
        for way in ways[1:]:
            predicted = play(told, way, traces, engine.file.spec)
            speed = statistics.median(found[way])
            print(
                f"{way:<12}{predicted:>12.1f}{speed:>10.1f}{predicted / speed - 1:>+9.1%}"
                f"   ({min(found[way]):.1f}-{max(found[way]):.1f})"
            )
