"""A replay of what a model wrote makes every decision that the engine made when it wrote it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import edgespec
from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.drafting.market.market import Market
from edgespec.drafting.registry import make_drafter
from edgespec.tools.replay.priced import PricedReplay
from edgespec.tools.replay.transcripts import Transcript

CURVE = {1: 0.010, 2: 0.0105, 4: 0.012, 8: 0.016, 16: 0.03}
NAMES = ("suffix-automaton", "trigram", "hierarchy")
NODES = 8
PROMPTS = ("Write a list of ten animals.", "Say hello three times.", "What is 2 + 2?")


class Ticks:
    """A clock that every look moves on by the same time, and passes by their price."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2e-6
        return self.now


def market(clock: Callable[[], float]) -> Market:
    return Market([make_drafter(name, 2**20) for name in NAMES], clock=clock)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_drafts_are_verified_and_accepted(bundled_model: Path, temperature: float) -> None:
    clock = Ticks()
    curve = CostCurve(CURVE, NODES + 1)
    with edgespec.load(bundled_model, threads=1) as engine:
        session, forward = engine.scheduler.slots[0], engine.scheduler.target.forward

        def priced(*arguments: object, **options: object) -> object:
            start = clock()
            found = forward(*arguments, **options)  # type: ignore[arg-type]
            clock.now += curve.seconds(len(found.logits)) - (clock() - start)
            return found

        engine.scheduler.target.forward = priced  # type: ignore[method-assign,assignment]
        engine.scheduler.target.compiled_pass = lambda *_: None  # type: ignore[method-assign]
        session.market = market(clock)
        engine.scheduler.controller = Controller(CostCurve(CURVE, NODES + 1), NODES + 1)
        session.clock = clock
        written, replies = [], []
        for seed, prompt in enumerate(PROMPTS):
            ids = engine.encode(prompt)
            reply = engine.generate(
                ids, max_tokens=120, temperature=temperature, seed=seed, ignore_eos=True
            )
            written.append(Transcript(ids, reply.token_ids))
            replies.append(reply.stats)
        spec = engine.file.spec
    again = PricedReplay(market(ticks := Ticks()), CURVE, NODES, spec, ticks)
    steps = drafted = accepted = 0
    by_source: dict[str, list[int]] = {}
    for transcript, stats in zip(written, replies, strict=True):
        again.replay(transcript)
        steps, drafted = steps + stats.steps, drafted + stats.drafted
        accepted += stats.accepted
        for name, share in stats.by_source.items():
            sums = by_source.setdefault(name, [0, 0])
            sums[0] += share["drafted"]
            sums[1] += share["accepted"]
        assert (again.stats.steps, again.stats.drafted, again.stats.accepted) == (
            steps, drafted, accepted,
        )  # fmt: skip
    found = {name: [s.drafted, s.accepted] for name, s in again.stats.by_source.items()}
    assert found == by_source
    assert accepted > 0
