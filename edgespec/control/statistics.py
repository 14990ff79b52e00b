"""What one reply's speculation did, in numbers."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tree import StepOutcome
from edgespec.system.records import dataclass


@dataclass(slots=True)
class SourceStats:
    """One drafter's share of a reply."""

    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {"drafted": self.drafted, "accepted": self.accepted, "seconds": self.seconds}


@dataclass(slots=True)
class ReplyStats:
    """Counts and seconds of the decoding of one reply, step by step."""

    sources: tuple[str, ...] = ("root",)
    """Names of the drafters by the index that trees carry; index 0 is the root."""
    steps: int = 0
    output_tokens: int = 0
    drafted: int = 0
    """Draft nodes verified."""
    accepted: int = 0
    decode_s: float = 0.0
    """Seconds of all steps, drafting included."""
    plain_s: float = 0.0
    """Seconds that plain decoding would have taken for the same tokens."""
    by_source: dict[str, SourceStats] = field(default_factory=dict)

    def record(
        self,
        outcome: StepOutcome,
        step_s: float,
        plain_step_s: float,
        draft_s_by_source: dict[str, float] | None = None,
    ) -> None:
        """Add a step that took `step_s` seconds in all, where a plain one takes `plain_step_s`."""
        num_tokens = len(outcome.path)
        self.steps += 1
        self.output_tokens += num_tokens
        self.drafted += len(outcome.tree) - 1
        self.accepted += num_tokens - 1
        self.decode_s += step_s
        self.plain_s += num_tokens * plain_step_s
        if len(outcome.tree) > 1:
            sources = outcome.tree.sources.tolist()
            for index in sources[1:]:
                self._source(index).drafted += 1
            for node in outcome.path[1:]:
                self._source(sources[node]).accepted += 1
        if draft_s_by_source:
            for name, seconds in draft_s_by_source.items():
                self._named(name).seconds += seconds

    def record_steps(
        self,
        counts: tuple[int, int, int, int],
        by_source: NDArray[np.int64],
        seconds: float,
        plain_s: float,
        draft_s_by_source: dict[str, float],
    ) -> None:
        """Add several steps: how many, their tokens, drafted and accepted nodes, and both by source
        [2, sources]; what they took, and what their tokens would have taken in plain passes.
        """
        steps, tokens, drafted, accepted = counts
        self.steps += steps
        self.output_tokens += tokens
        self.drafted += drafted
        self.accepted += accepted
        self.decode_s += seconds
        self.plain_s += plain_s
        if drafted:
            for index, (own, right) in enumerate(by_source.T.tolist()):
                if own:
                    source = self._source(index)
                    source.drafted += own
                    source.accepted += right
        for name, spent in draft_s_by_source.items():
            self._named(name).seconds += spent

    def record_rest(self, num_tokens: int, plain_token_s: float) -> None:
        """Add tokens that came with the last step and took no pass, of the last source; each would
        have taken `plain_token_s` seconds.
        """
        source = self._named(self.sources[-1])
        source.drafted += num_tokens
        source.accepted += num_tokens
        self.drafted += num_tokens
        self.accepted += num_tokens
        self.output_tokens += num_tokens
        self.plain_s += num_tokens * plain_token_s

    def add(self, other: ReplyStats) -> None:
        """Count another reply in."""
        self.steps += other.steps
        self.output_tokens += other.output_tokens
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.decode_s += other.decode_s
        self.plain_s += other.plain_s
        for name, source in other.by_source.items():
            own = self._named(name)
            own.drafted += source.drafted
            own.accepted += source.accepted
            own.seconds += source.seconds

    def _source(self, index: int) -> SourceStats:
        return self._named(self.sources[index] if index < len(self.sources) else f"source {index}")

    def _named(self, name: str) -> SourceStats:
        found = self.by_source.get(name)
        if found is None:  # a default would be made, and thrown away, for every draft
            found = self.by_source[name] = SourceStats()
        return found

    @property
    def tokens_per_step(self) -> float:
        """Tokens written per forward pass: 1 is plain decoding."""
        return self.output_tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed, the prompt not included."""
        return self.output_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def estimated_speedup(self) -> float:
        """How many times faster than plain decoding at the measured price of a plain step; 1 before
        any step.
        """
        return self.plain_s / self.decode_s if self.decode_s else 1.0

    def as_dict(self) -> dict[str, Any]:
        """The numbers under the names of `run --json`."""
        return {
            "output_tokens": self.output_tokens,
            "steps": self.steps,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_step": self.tokens_per_step,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "by_source": {name: source.as_dict() for name, source in self.by_source.items()},
            "estimated_speedup": self.estimated_speedup,
        }
