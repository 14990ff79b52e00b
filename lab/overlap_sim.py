"""The simulator's machines, and two real models that it is held against.

The engine's own loop, market, controller and overlap run on a clock of their own: passes and drafts
compute nothing and take what a profile says, and drafts are right as often as it says.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np

from edgespec.backends.passes import Rows as LogitRows
from edgespec.backends.passes import TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.control.overlap.profile import measure
from edgespec.drafting.model.chains import NUM_MARGINS, first_rates
from edgespec.drafting.model.model_drafter import Draw
from edgespec.drafting.model.small_model import MOST_NODES
from edgespec.engine.engine import Engine
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from lab import overlap
from lab.harness import Asked, Rows, Spread
from lab.overlap_world import NODES, OPTIONS, Profile, Trace, play

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


def profile(
    name: str, pass_ms: float, more: float, draft_ms: float, right: float, slowdown: float,
    hold_up: float,
) -> Profile:  # fmt: skip
    """Each node more adds the part `more` of the first to a pass, and 5 % to a draft."""
    passes = {n: 1e-3 * pass_ms * (1 + more * (n - 1)) for n in SIZES}
    drafts = {n: 1e-3 * draft_ms * (1 + 0.05 * (n - 1)) for n in SIZES}
    return Profile(name, passes, drafts, right, slowdown, hold_up)


PROFILES = (
    # Assumed: a pass reads the weights once (pass = bytes / bandwidth); nodes are nearly free on
    # GPUs and cost more where arithmetic is short; a draft model has 1/8 to 1/30 of the bytes; both
    # on one memory hold each other up, on two machines not at all.
    profile("phone, big cores + little cores", 120, 0.08, 18, 0.75, 1.0, 0.35),
    profile("phone, NPU + little cores", 45, 0.01, 7, 0.75, 1.0, 0.15),
    profile("laptop, iGPU + CPU", 60, 0.03, 7, 0.75, 1.0, 0.30),
    profile("laptop, dGPU + CPU", 22, 0.005, 4, 0.75, 1.0, 0.0),
    profile("laptop, P cores + E cores", 80, 0.05, 14, 0.75, 1.05, 0.30),
    profile("desktop, dGPU + CPU", 35, 0.004, 3, 0.80, 1.0, 0.0),
    profile("desktop, 16 cores", 90, 0.06, 8, 0.75, 1.05, 0.40),
    profile("mini PC, 4 cores", 140, 0.07, 20, 0.70, 1.15, 0.50),
    profile("board, 4 small cores", 400, 0.10, 60, 0.70, 1.30, 0.60),
    profile("2 cores of a server", 8, 0.04, 1.8, 0.75, 1.45, 0.45),
    profile("GPU of another machine, RPC", 28, 0.005, 4, 0.75, 1.0, 0.0),
    profile("CPU of another machine, RPC", 150, 0.06, 20, 0.70, 1.0, 0.0),
)


def made_up(told: Profile, length: int, vocab_size: int, seed: int) -> Trace:
    """A text whose drafts are right as often as the profile says, the sure ones more often, and
    every other runner-up where the draft is wrong.
    """
    rng = np.random.default_rng(seed)
    rates = np.array(first_rates()[:NUM_MARGINS])
    low, high = -60.0, 60.0
    for _ in range(60):  # weights of kinds whose mean rate is the one asked for
        tilt = (low + high) / 2
        weights = np.exp(tilt * rates) / np.exp(tilt * rates).sum()
        low, high = (tilt, high) if weights @ rates < told.right else (low, tilt)
    tokens, draws = rng.integers(0, vocab_size - 2, length).tolist(), []
    for token in tokens:
        kind, first, second = int(rng.choice(NUM_MARGINS, p=weights)), token + 1, token + 2
        if rng.random() < rates[kind]:
            first = token
        elif rng.random() < 0.5:
            second = token
        draws.append(Draw(first, second, kind))
    return Trace([1, 2, 3], tokens, draws)


def machines(num_tokens: int) -> Rows:
    """A row for each profile."""
    with open_model(resolve()) as file:
        spec = replace(file.spec, vocab_size=1024)
    for told in PROFILES:
        traces = [made_up(told, num_tokens, spec.vocab_size, seed=1)]
        speeds = {way: play(told, way, traces, spec) for way in OPTIONS}
        base = speeds["in turn"]
        yield {
            "machine": told.name,
            "in turn, tokens/s": base,
            **{way: speeds[way] / base for way in ("chain", "branches", "auto")},
        }


TRIES = 3


def recorded(engine: Engine, tokens: int) -> list[Trace]:
    """Real replies, and what the real draft model says at each of their places."""
    traces = []
    drafter = overlap.drafter_of(engine)._pipeline.rest()
    for prompt, temperature in overlap.PROMPTS:
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
    ahead, sequence = overlap.drafter_of(engine), engine.scheduler.slots[0].sequence
    drafter = ahead._pipeline.rest()

    def timed(one: KvSequence, size: int, rows: LogitRows) -> float:
        start = time.perf_counter()
        one.forward(TokenTree.chain([0] * size), rows=rows)
        return time.perf_counter() - start

    small = drafter._small
    many: dict[int, list[float]] = {size: [] for size in range(1, NODES + 1)}
    few: dict[int, list[float]] = {size: [] for size in range(1, MOST_NODES + 1)}
    # All sizes, as passes go up in steps on some engines; in turns, as in a step, because each
    # model finds the other's weights in the cache.
    for _ in range(TRIES):
        for size, seconds in many.items():
            part = (size - 1) % MOST_NODES + 1
            few[part].append(timed(small, part, "last"))
            seconds.append(timed(sequence, size, "all"))
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


def validate(asked: Asked) -> Rows:
    """What is predicted of a real pair beside what it does."""
    with overlap.opened(asked, asked.model, asked.draft) as engine:
        traces = recorded(engine, asked.tokens)
        ways = ("plain", "in turn", "chain", "branches")
        before = measured(engine, 0.0)
        found, _ = overlap.speeds(engine, ways, asked.tokens, asked.rounds)
        told = measured(engine, 1.0 / statistics.median(found["plain"]))
        pairs = ((told.passes, before.passes), (told.drafts, before.drafts))
        both = [{n: (one[n] + other[n]) / 2 for n in one} for one, other in pairs]
        told = replace(
            told, passes=both[0], drafts=both[1], hold_up=(told.hold_up + before.hold_up) / 2,
            step_s=max(1.0 / statistics.median(found["plain"]) - both[0][1], 0.0),
        )  # fmt: skip
        for way in ways[1:]:
            predicted = play(told, way, traces, engine.file.spec)
            speed = Spread.of(found[way])
            yield {
                "way": way,
                "predicted, tokens/s": predicted,
                "real": speed,
                "off by": f"{predicted / speed.median - 1:+.1%}",
            }
        yield {
            "slowdown": told.slowdown,
            "hold-up": told.hold_up,
            "T(n), ms": {str(n): 1e3 * s for n, s in told.passes.items()},
            "drafts, ms": {str(n): 1e3 * s for n, s in told.drafts.items()},
        }
