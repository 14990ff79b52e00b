"""Replaying a reply by the engine's own loop: its market, its controller, at given prices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.statistics import ReplyStats
from edgespec.drafting.market.market import Market
from edgespec.engine.decode import Run, decode
from edgespec.engine.request import Request
from edgespec.engine.slot import Session
from edgespec.models.spec import ModelSpec
from edgespec.tools.replay.logged import LoggedTarget
from edgespec.tools.replay.steps import LIKELIEST
from edgespec.tools.replay.transcripts import Transcript
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
        self._session = Session(self._target.own, market, clock=self._target.clock)
        self._verifier = Verifier(spec.vocab_size, LIKELIEST, nodes)
        self.stats = ReplyStats(market.names)
        """Of all replies together; seconds are the passes' by the curve, and those of drafting."""

    def replay(self, transcript: Transcript) -> None:
        """Decode a reply that ends with its last token."""
        if not transcript.output_ids:
            return
        session = self._session
        self._target.open_log(transcript)
        session.ids[:] = transcript.prompt_ids
        session.market.begin(LIKELIEST)
        session.market.reset(transcript.prompt_ids)
        request = Request(
            tuple(transcript.prompt_ids), LIKELIEST, max_tokens=len(transcript.output_ids)
        )
        run = Run(session, request, self._verifier, frozenset(), ReplyStats(self.stats.sources))
        for _ in decode(run, self._controller):
            pass
        self.stats.add(run.stats)
