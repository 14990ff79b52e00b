"""The engine's own loop on a clock of its own: passes and drafts take what a profile says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.overlap.overlapped_drafter import DraftAhead
from edgespec.control.overlap.pipeline import Job, Pipeline
from edgespec.drafting.market.market import Market
from edgespec.drafting.model import guesses
from edgespec.drafting.model.model_drafter import Draw, ModelDrafter
from edgespec.drafting.model.small_model import MOST_NODES, DraftModelDrafter, branches
from edgespec.engine.generation import Generation
from edgespec.engine.request import Request
from edgespec.engine.slot import Slot
from edgespec.tools.replay.logged import LoggedTarget
from edgespec.tools.replay.priced import decode_alone
from edgespec.tools.replay.transcripts import LIKELIEST, Transcript
from edgespec.verification.match import Verifier

NODES = 16
OPTIONS = {"in turn": "off", "chain": "on", "branches": "on", "auto": "auto"}


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
    curve: Mapping[int, float] | None = None
    """What the engine believes of passes, where it was told of few sizes; None: the truth."""


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
    controller = Controller(CostCurve(told.curve or told.passes, NODES), NODES)
    slot = Slot(target.own, market, clock=target.clock)
    market.attach(target.own, controller.curve.table)
    verifier = Verifier(spec.vocab_size, LIKELIEST, NODES)
    with branching(way != "chain"):
        for _ in range(2):
            start, num_tokens = world.now, 0
            for trace in traces:
                drafter.trace = trace
                target.open_log(Transcript(trace.prompt, trace.tokens))
                slot.ids[:] = trace.prompt
                request = Request(tuple(trace.prompt), LIKELIEST, max_tokens=len(trace.tokens))
                generation = Generation(request)
                generation.take(slot, verifier)
                num_tokens += sum(len(new) for new in decode_alone(generation, controller))
    return num_tokens / (world.now - start)


@contextmanager
def branching(wanted: bool) -> Iterator[None]:
    """Whether runners-up are followed."""
    before = guesses.LEAST_SECOND
    guesses.LEAST_SECOND = before if wanted else 2.0
    try:
        yield
    finally:
        guesses.LEAST_SECOND = before
