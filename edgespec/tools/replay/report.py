"""What a replay found, as plain values; `text.py` shows it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from edgespec.control.cost_curve import CostCurve
from edgespec.system.records import dataclass
from edgespec.tools.replay.prices import Prices
from edgespec.tools.replay.steps import Tally


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One drafter, or the market of several, over all replies."""

    name: str
    tally: Tally
    predicted_speedup: float
    """Against plain decoding, with the cost curve's passes and this machine's drafting."""
    by_source: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of the market: whose nodes were verified and accepted; those that several drafters agree on
    are the surest one's."""

    @property
    def tokens_per_step(self) -> float:
        """1 is plain decoding."""
        return self.tally.tokens / self.tally.steps if self.tally.steps else 1.0

    @property
    def microseconds_per_step(self) -> float:
        """Drafting, and learning from the outcome."""
        return 1e6 * self.tally.drafting_s / self.tally.steps if self.tally.steps else 0.0

    def as_dict(self) -> dict[str, Any]:
        tally = self.tally
        return {
            "name": self.name,
            "tokens_per_step": self.tokens_per_step,
            "drafted": tally.drafted,
            "accepted": tally.accepted,
            "microseconds_per_step": self.microseconds_per_step,
            "steps": tally.steps,
            "prompt_seconds": tally.reading_s,
            "predicted_speedup": self.predicted_speedup,
        } | ({"by_source": self.by_source} if self.by_source else {})


def fixed_speedup(tally: Tally, curve: CostCurve) -> float:
    """Against plain decoding when everything that is drafted is verified, whatever it costs."""
    plain_s = tally.tokens * curve.seconds(1)
    passes_s = sum(count * curve.seconds(nodes) for nodes, count in tally.passes.items())
    return plain_s / (passes_s + tally.drafting_s) if tally.steps else 1.0


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Everything one replay found."""

    path: str
    vocabulary: str
    replies: int
    prompt_tokens: int
    output_tokens: int
    max_nodes: int
    prices: Prices
    in_market: tuple[str, ...]
    sources: tuple[SourceReport, ...]
    left_out: tuple[str, ...]
    """Drafters that need what no log holds."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "path": self.path,
            "vocabulary": self.vocabulary,
            "replies": self.replies,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "max_nodes": self.max_nodes,
            "cost_curve": {
                "origin": self.prices.origin,
                "seconds": {str(n): seconds for n, seconds in sorted(self.prices.curve.items())},
            },
            "in_market": list(self.in_market),
            "sources": [source.as_dict() for source in self.sources],
            "left_out": list(self.left_out),
        }
