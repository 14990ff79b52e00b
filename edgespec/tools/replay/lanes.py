"""Who is replayed: each drafter alone, the market of all of them, and prompt lookup beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Protocol

from edgespec.control.cost_curve import CostCurve
from edgespec.drafting.base import Drafter
from edgespec.drafting.market.market import Market
from edgespec.drafting.registry import DRAFTERS, drafter_names, make_drafter
from edgespec.drafting.text.history import History
from edgespec.drafting.text.past import Past, past_bytes
from edgespec.drafting.text.store import Store
from edgespec.errors import OptionError
from edgespec.memory.plan.settings import LARGEST_DRAFTER_BYTES
from edgespec.memory.plan.sizing import MARKET_BYTES, MODEL_DRAFTERS, store_shares
from edgespec.models.spec import ModelSpec
from edgespec.system.records import dataclass
from edgespec.tools.replay.priced import PricedReplay
from edgespec.tools.replay.prices import Prices
from edgespec.tools.replay.prompt_lookup import NUM_TOKENS, PromptLookupDrafter
from edgespec.tools.replay.report import SourceReport, fixed_speedup
from edgespec.tools.replay.steps import Tally, replay_steps
from edgespec.tools.replay.transcripts import Transcript

_SMALLEST_BYTES = 64 * 1024
_OF_REJECTED = ("jacobi",)
"""They learn from nodes that were not accepted, of which no log tells."""


class Lane(Protocol):
    """One row of the report while it is made."""

    def replay(self, transcript: Transcript) -> None:
        """The next reply; what was learnt from those before stays."""

    def report(self) -> SourceReport:
        """What has been found so far."""


def choose_drafters(
    names: str, store: str | None = None, *, logits: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The drafters that can be replayed of those asked for, and those that cannot: they ask a
    model, or learn from `logits` that the log does not hold. "all" asks for every one.

    Raises OptionError for unknown names, or when nothing is left.
    """
    asked = tuple(DRAFTERS) if names == "all" else drafter_names(names, store)
    if not asked:
        raise OptionError(f"--drafters {names} names nobody to replay; try auto or all")
    wants_logits = {
        name
        for name in asked
        if name in (*MODEL_DRAFTERS, *_OF_REJECTED)
        or (not logits and make_drafter(name, _SMALLEST_BYTES).wants_top)
    }
    chosen = tuple(name for name in asked if name not in wants_logits)
    if not chosen:
        raise OptionError(
            f"--drafters {names} leaves nothing to replay: the log does not hold the model's "
            "logits, which these learn from; record it with `run --record`, or name others"
        )
    return chosen, tuple(name for name in asked if name in wants_logits)


def make_lanes(
    names: Sequence[str],
    spec: ModelSpec,
    max_nodes: int,
    prices: Prices,
    corpus: Store | None = None,
) -> list[Lane]:
    """A lane for each drafter, one for their market, one for prompt lookup."""
    lanes: list[Lane] = [
        DraftersLane(name, (name,), spec, max_nodes, prices, corpus)
        for name in dict.fromkeys(names)
    ]
    market = DraftersLane("market", tuple(names), spec, max_nodes, prices, corpus)
    return [market, *lanes, PromptLookupLane(prices)]


class DraftersLane:
    """One drafter, or a market of several: with all nodes verified, and as the engine would."""

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        spec: ModelSpec,
        max_nodes: int,
        prices: Prices,
        corpus: Store | None = None,
    ) -> None:
        self._name = name
        self._max_nodes = max_nodes
        is_market = name == Market.name
        self._market = make_market(members, corpus=corpus) if is_market else None
        self._drafter: Drafter = self._market or make(members[0], corpus=corpus)
        self._tally = Tally()
        market = make_market(members, corpus=corpus)
        self._priced = PricedReplay(market, prices.curve, max_nodes, spec)

    def replay(self, transcript: Transcript) -> None:
        replay_steps(self._drafter, transcript, self._max_nodes, self._tally)
        self._priced.replay(transcript)

    def report(self) -> SourceReport:
        speedup = self._priced.stats.estimated_speedup
        if self._market is None:
            return SourceReport(self._name, self._tally, speedup)
        tally = self._tally
        by_source = {
            name: {"drafted": tally.drafted_by[number], "accepted": tally.accepted_by[number]}
            for number, name in enumerate(self._market.names)
            if number
        }
        return SourceReport(self._name, tally, speedup, by_source)


@dataclass(slots=True)
class PromptLookupLane:
    """Prompt lookup with its own number of tokens, which it always verifies."""

    prices: Prices
    _drafter: PromptLookupDrafter = field(default_factory=PromptLookupDrafter)
    _tally: Tally = field(default_factory=Tally)

    def replay(self, transcript: Transcript) -> None:
        replay_steps(self._drafter, transcript, NUM_TOKENS, self._tally)

    def report(self) -> SourceReport:
        curve = CostCurve(self.prices.curve, NUM_TOKENS + 1)
        return SourceReport(self._drafter.name, self._tally, fixed_speedup(self._tally, curve))


def make_market(
    names: Sequence[str],
    max_bytes: int = LARGEST_DRAFTER_BYTES,
    corpus: Store | None = None,
) -> Market:
    """These drafters in as many bytes as the engine gives them at most, or fewer; until it is told
    what a token is worth, it asks everyone.
    """
    shares = store_shares(names, max_bytes - MARKET_BYTES)
    market = Market([make(name, shares[name], corpus) for name in names])
    market.token_s = math.inf
    return market


def make(name: str, max_bytes: int = LARGEST_DRAFTER_BYTES, corpus: Store | None = None) -> Drafter:
    """A drafter that remembers earlier replies, of this file and no others."""
    shared: dict[str, Any] = {}
    if name == "hierarchy":
        shared = {"history": History(), "corpus": corpus}
    elif name == "suffix-automaton":
        shared = {"past": Past(past_bytes(max_bytes))}
    return make_drafter(name, max_bytes, **shared)
