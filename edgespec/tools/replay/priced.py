"""Replaying a reply by the engine's own loop: its market, its controller, at given prices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.statistics import ReplyStats
from edgespec.drafting.market.market import Market
from edgespec.engine.decode import decode
from edgespec.engine.generation import Generation
from edgespec.engine.request import Request
from edgespec.engine.slot import Slot
from edgespec.models.spec import ModelSpec
from edgespec.tools.replay.logged import LoggedTarget
from edgespec.tools.replay.transcripts import LIKELIEST, Transcript
from edgespec.verification.match import Verifier


class PricedReplay:
    """What the engine would have made of the replies, one after the other."""

    def __init__(
        self,
        market: Market,
        curve: Mapping[int, float],
        max_nodes: int,
        spec: ModelSpec,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`max_nodes` besides the root; the curve is seconds of a pass by nodes, root included."""
        nodes = max_nodes + 1
        self._target = LoggedTarget(spec, nodes, CostCurve(curve, nodes), clock)
        self._controller = Controller(CostCurve(curve, nodes), nodes)
        self._slot = Slot(self._target.own, market, clock=self._target.clock)
        self._verifier = Verifier(spec.vocab_size, LIKELIEST, nodes)
        self.stats = ReplyStats(market.names)
        """Of all replies together; seconds are the passes' by the curve, and those of drafting."""

    def replay(self, transcript: Transcript) -> None:
        """Decode a reply that ends with its last token."""
        if not transcript.output_ids:
            return
        slot = self._slot
        self._target.open_log(transcript)
        slot.ids[:] = transcript.prompt_ids
        request = Request(
            tuple(transcript.prompt_ids), LIKELIEST, max_tokens=len(transcript.output_ids)
        )
        generation = Generation(request)
        generation.take(slot, self._verifier)
        for _ in decode_alone(generation, self._controller):
            pass
        self.stats.add(generation.counts)


def decode_alone(generation: Generation, controller: Controller) -> Iterator[list[int]]:
    """The tokens of each step of one generation, which has a slot, until it ends."""
    running = [generation]
    for (new,) in decode(running, controller):
        yield new
        if generation.is_over:
            running.clear()
    generation.slot.settle()
