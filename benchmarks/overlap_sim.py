"""What drafting while the target verifies would bring on machines that are not here.

    python benchmarks/overlap_sim.py                     12 profiles, of the assumptions in PROFILES
    python benchmarks/overlap_sim.py --validate DRAFT.gguf --model MODEL [--backend llamacpp]

The engine's own loop, market, controller and overlap run on a clock of their own: passes and drafts
compute nothing and take what a profile says, and drafts are right as often as it says. Drafting in
turn is compared with drafting ahead without branches ("chain", as PEARL does), with branches, and
with what `auto` makes of it. `--validate` takes the profile from two real models, what passes and
drafts take alone and beside each other, and where the draft model is right and how sure it is; and
holds what it predicts against real runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks import overlap as real
from edgespec.backends.base import TokenTree
from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.overlap import DraftAhead
from edgespec.control.overlap_profile import measure
from edgespec.control.pipeline import Job, Pipeline
from edgespec.control.stats import ReplyStats
from edgespec.decode import Run, decode
from edgespec.drafting import Market, guesses
from edgespec.drafting.chain_kernels import NUM_MARGINS, first_rates
from edgespec.drafting.draft_model import MOST_NODES, DraftModelDrafter, branches
from edgespec.drafting.model_drafter import Draw, ModelDrafter
from edgespec.engine import Engine
from edgespec.models import open_model, resolve
from edgespec.replay.logged import LoggedTarget
from edgespec.replay.steps import LIKELIEST
from edgespec.replay.transcripts import Transcript
from edgespec.reply import Request
from edgespec.session import Session
from edgespec.verification.acceptance import Verifier

NODES = 16
OPTIONS = {"in turn": "off", "chain": "on", "branches": "on", "auto": "auto"}
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Profile:
    """A machine with two models, in seconds."""

    name: str
    passes: Mapping[int, float]
    """The target's passes by nodes while nobody drafts, on all that it has then."""
    drafts: Mapping[int, float]
    """The draft model's passes by nodes, alone."""
    right: float = 0.75
    """How often a draft is the target's token."""
    slowdown: float = 1.0
    """How many times as long the target takes on the cores that overlap leaves it."""
    hold_up: float = 0.0
    """The target's delay for each second of drafting beside it."""
    step_s: float = 2e-4
    """What a step takes besides."""


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


@dataclass
class World:
    """The clock, and whose machine it is."""

    profile: Profile
    now: float = 0.0

    def clock(self) -> float:
        return self.now

    def draft_s(self, num_nodes: int) -> float:
        sizes = sorted(self.profile.drafts)
        return float(np.interp(num_nodes, sizes, [self.profile.drafts[size] for size in sizes]))


@dataclass(frozen=True)
class Trace:
    """A reply, and what the draft model said at each of its places."""

    prompt: list[int]
    tokens: list[int]
    draws: list[Draw]


class Traced(DraftModelDrafter):
    """Says what a trace says, and off its text something as unsure as it is elsewhere; in turn it
    drafts by `ModelDrafter`'s rule, on the world's clock.
    """

    def __init__(self, world: World, vocab_size: int) -> None:
        ModelDrafter.__init__(self, vocab_size)
        self._world, self._vocab = world, vocab_size
        self._text: list[int] = []
        self._fed: list[int] = []
        self._ids = None
        self.trace = Trace([], [], [])

    def look(self, paths: Sequence[Sequence[int]]) -> list[Draw | None]:
        return [self._say([*path]) for path in paths]

    def _say(self, path: list[int]) -> Draw:
        trace, begin = self.trace, len(self._text) - len(self.trace.prompt)
        place = begin + len(path)
        if trace.tokens[begin:place] == path and place < len(trace.draws):
            return trace.draws[place]
        mixed = hash((place, *path))
        kind = trace.draws[mixed % len(trace.draws)].kind
        return Draw(mixed % self._vocab, (mixed + 1) % self._vocab, kind)

    def seconds(self, paths: Sequence[Sequence[int]]) -> float:
        """Of the pass that `look` would make of these paths."""
        shared = len(os.path.commonprefix([[*path] for path in paths]))
        trunk = [*self._text, *paths[0][:shared]]
        most = min(len(self._fed), len(trunk) - 1)
        same = next((n for n in range(most) if self._fed[n] != trunk[n]), most)
        count = len(trunk) - same + len(branches([[*path][shared:] for path in paths])[0])
        self._fed = [*self._text, *paths[0]]
        return self._world.draft_s(min(count, MOST_NODES))

    def _row(self, token: int, depth: int) -> Any:
        self._world.now += self.seconds([self._chain(depth)])
        self._step_s = self._world.draft_s(1)

    def _draw(self, depth: int, *_: Any) -> bool:
        draw = self._say(self._chain(depth))
        self._drafts[depth] = draw.first, draw.second
        self._kinds[depth], self._num_drafts = draw.kind, depth + 1
        return True

    def _chain(self, depth: int) -> list[int]:
        return [int(token) for token in self._drafts[:depth, 0]]

    def _observe_price(self, seconds: float) -> None:
        """It is known."""

    def _draw_chain(self, longest: int) -> None:
        nothing = (None, None)
        row = self._row
        self._row = lambda *arguments: (row(*arguments), nothing)[1]  # type: ignore[method-assign]
        try:
            super()._draw_chain(longest)
        finally:
            del self._row

    def _room(self) -> int:
        return MOST_NODES


class Played(Pipeline):
    """The pipeline without its thread: when it is asked, it first does what was due by then."""

    def __init__(self, drafter: Traced, world: World) -> None:
        super().__init__(drafter, clock=world.clock)
        self._world, self._traced = world, drafter
        self._job: Job | None = None
        self._at = self._due = 0.0
        """Until when the drafter's life is told, and when its job is done."""

    def live(self) -> None:
        """Live until now."""
        world = self._world
        now = world.now
        while True:
            if self._job is None:
                world.now = self._at
                self._job = self._take_job() if self._running else None
                if self._job is None:
                    self._at = now
                    break
                self._due = self._at + self._traced.seconds(self._job[1])
            if self._due > now:
                break
            world.now = self._at = self._due
            nodes, paths = self._job
            self._job = None
            self._finish(nodes, self._traced.look(paths))
        world.now = now

    def go_on(self) -> None:
        self.live()
        self._running = True
        self.live()

    def pause(self) -> None:
        self.live()
        self._running = False

    def rest(self) -> DraftModelDrafter:
        self.pause()
        if self._job is not None:
            self._world.now = self._due
            self.live()
        return super().rest()

    def wait(self, pays: Callable[[float, float, int], bool]) -> bool:
        self.live()
        waited = False
        while True:
            coming = self._coming()
            if coming is None or not pays(*coming, self._guesses.size):
                break
            waited = self._awaited = True
            self.live()
            if self._job is None:
                break
            self._world.now = self._due
            self.live()
        self._awaited = False
        return waited

    def verdict(self, tokens: Sequence[int]) -> None:
        self.live()
        super().verdict(tokens)

    def close(self) -> None:
        """There is no thread."""


class PlayedAhead(DraftAhead):
    """Knows what a profile knows; there is nothing to be measured."""

    def attach(self, sequence: Any, prices: Any) -> None:
        self._drafter.attach(sequence, prices)
        self._prices = prices

    def _lend(self, threads: int | None) -> None:
        """There are none."""


class PlayedTarget(LoggedTarget):
    """Says what the log says; a pass takes what the profile says of it and of what is drafted
    beside it.
    """

    def __init__(self, world: World, pipeline: Played, spec: Any) -> None:
        super().__init__(spec, NODES, _Free({1: 1.0}, NODES), world.clock)
        self._world, self._pipeline = world, pipeline
        self._passes = CostCurve(world.profile.passes, NODES)

    def _forward(self, parts: Any, rows: Any) -> Any:
        world, pipeline = self._world, self._pipeline
        told, begin = world.profile, world.now
        pass_s = self._passes.seconds(len(parts[0][1]))
        if pipeline._running:
            pass_s *= told.slowdown
            drafts, end = pipeline.drafts, -1.0
            while begin + pass_s > end:  # every draft that is written meanwhile holds it up
                world.now = end = begin + pass_s
                pipeline.live()
                done, drafts = pipeline.drafts - drafts, pipeline.drafts
                pass_s += done * told.hold_up * told.drafts[1]
        world.now = begin + pass_s + told.step_s
        return super()._forward(parts, rows)


class _Free(CostCurve):
    """The world's clock is moved by the target itself."""

    def seconds(self, num_nodes: int) -> float:
        return 0.0


def play(told: Profile, way: str, traces: Sequence[Trace], spec: Any) -> float:
    """Tokens a second, once all replies were written to learn from."""
    world = World(told)
    drafter = Traced(world, spec.vocab_size)
    pipeline = Played(drafter, world)
    ahead = PlayedAhead(drafter, OPTIONS[way], pipeline=pipeline, clock=world.clock)
    ahead._choice.slowdown, ahead._choice.hold_up = told.slowdown, told.hold_up
    target = PlayedTarget(world, pipeline, spec)
    market = Market([ahead], clock=target.clock)
    controller = Controller(CostCurve(told.passes, NODES), NODES)
    session = Session(target.own, market, clock=target.clock)
    market.attach(target.own, controller.curve.table)
    verifier = Verifier(spec.vocab_size, LIKELIEST, NODES)
    with branching(way != "chain"):
        for _ in range(2):
            start, num_tokens = world.now, 0
            for trace in traces:
                drafter.trace = trace
                target.open_log(Transcript(trace.prompt, trace.tokens))
                session.ids[:] = trace.prompt
                market.begin(LIKELIEST)
                market.reset(trace.prompt)
                request = Request(tuple(trace.prompt), LIKELIEST, max_tokens=len(trace.tokens))
                run = Run(session, request, verifier, frozenset(), ReplyStats(market.names))
                num_tokens += sum(len(new) for new in decode(run, controller))
    return num_tokens / (world.now - start)


@contextmanager
def branching(wanted: bool):  # type: ignore[no-untyped-def]
    """Whether runners-up are followed."""
    before = guesses.LEAST_SECOND
    guesses.LEAST_SECOND = before if wanted else 2.0
    try:
        yield
    finally:
        guesses.LEAST_SECOND = before


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
    ahead, sequence = real.drafter_of(engine), engine._session.sequence
    drafter = ahead._pipeline.rest()

    def timed(forward: Callable[[TokenTree], Any], sizes: Sequence[int]) -> dict[int, float]:
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(7):
            for size in sizes:
                start = time.perf_counter()
                forward(TokenTree.chain([0] * size))
                seconds[size].append(time.perf_counter() - start)
        return {size: statistics.median(times) for size, times in seconds.items()}

    target, small = sequence.target, drafter._small
    passes = timed(lambda tree: target.forward_batch(((sequence, tree),)), SIZES)
    drafts = timed(
        lambda tree: small.target.forward_batch(((small, tree),), rows="last"), (1, 2, 4, 6, 8)
    )
    found = measure(sequence, drafter, ahead._threads, ahead._draft_threads)
    small.truncate(0)
    drafter._fed.clear()
    slowdown = found.slowdown if ahead._threads else 1.0
    step_s = max(plain_s - passes[1], 0.0)
    return Profile("here", passes, drafts, 0.0, slowdown, found.hold_up, step_s)


def validate(asked: argparse.Namespace) -> None:
    """Print what is predicted of a real pair beside what it does."""
    with edgespec.load(
        asked.model, backend=asked.backend, threads=asked.threads, drafters="none",
        draft_model=asked.validate, context=1024,
    ) as engine:  # fmt: skip
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--validate", metavar="DRAFT.gguf")
    parser.add_argument("--model")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if asked.validate:
        asked.tokens = asked.tokens or 96
        validate(asked)
        return
    with open_model(resolve()) as file:
        spec = replace(file.spec, vocab_size=1024)
    print(f"{'tokens/s':<34}{'in turn':>9}{'chain':>14}{'branches':>16}{'auto':>16}")
    for told in PROFILES:
        traces = [made_up(told, asked.tokens or 3000, spec.vocab_size, seed=1)]
        speeds = {way: play(told, way, traces, spec) for way in OPTIONS}
        base = speeds["in turn"]
        cells = "".join(
            f"{speeds[way]:>8.1f} {speeds[way] / base:.2f}x"
            for way in ("chain", "branches", "auto")
        )
        print(f"{told.name:<34}{base:>9.1f}{cells}")


if __name__ == "__main__":
    main()
