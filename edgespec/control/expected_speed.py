"""How fast a backend would write, from what its passes cost and how well a text can be guessed.

A text is taken as two kinds of tokens: a share that repeats what was said before, where each draft
is right with a fixed probability, and the rest, which nobody guesses. Over the repeating part as
many nodes are verified as pay back, which is the controller's rule; so a backend whose passes grow
slowly is expected to gain more from the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from edgespec.system.records import dataclass
from edgespec.system.user_data import data_folder, make_private, write_private

P_RIGHT = 0.85
"""Of a draft in the repeating part, the one before it being right."""
USUAL_SHARE = 0.2
"""Of a text that repeats, where nothing is known of a model's texts."""
_USUAL_TOKENS = 256
"""What the usual share weighs against what was seen, in tokens."""
_MOST_TOKENS = 8192
"""What was seen weighs at most this, so that newer replies count for more."""


def plain_speed(curve: Mapping[int, float]) -> float:
    """Tokens a second without drafts."""
    return 1.0 / curve[1]


def expected_speed(curve: Mapping[int, float], share: float) -> float:
    """Tokens a second of a text of which `share` repeats; `curve` is seconds by number of nodes."""
    tokens, seconds = _best_step(curve)
    return 1.0 / ((1.0 - share) * curve[1] + share * seconds / tokens)


def seen_share(curve: Mapping[int, float], tokens: int, steps: int) -> float | None:
    """The share of a reply that must have repeated to take so few steps on a backend with this
    curve; None where no draft pays, which tells nothing.
    """
    gained, _ = _best_step(curve)
    if gained <= 1.0:
        return None
    return min(max((1.0 - steps / tokens) / (1.0 - 1.0 / gained), 0.0), 1.0)


def _best_step(curve: Mapping[int, float]) -> tuple[float, float]:
    """Tokens and seconds of the step of most tokens a second in the repeating part."""
    steps = [((1.0 - P_RIGHT**nodes) / (1.0 - P_RIGHT), curve[nodes]) for nodes in curve]
    return max(steps, key=lambda step: step[0] / step[1])


@dataclass(slots=True)
class RepeatingShare:
    """How much of a model's texts repeated, kept between runs: two numbers and no text."""

    path: Path | None
    share: float = USUAL_SHARE
    tokens: float = 0.0
    """How many tokens it was seen in; older ones fade."""

    @classmethod
    def of(cls, model: bytes) -> RepeatingShare:
        """What is known of the model with this fingerprint."""
        folder = data_folder()
        if folder is None:
            return cls(None)
        path = folder / "acceptance" / f"{model.hex()}.json"
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
            values = json.loads(path.read_text(encoding="utf-8"))
            share, tokens = float(values["share"]), float(values["tokens"])
            if 0.0 <= share <= 1.0 and 0.0 <= tokens <= _MOST_TOKENS:
                return cls(path, share, tokens)
        return cls(path)

    def learn(self, curve: Mapping[int, float], tokens: int, steps: int) -> None:
        """Take a reply into account that was written with drafts."""
        seen = seen_share(curve, tokens, steps) if tokens else None
        if seen is not None:
            weight = max(self.tokens, _USUAL_TOKENS)
            self.share += (seen - self.share) * tokens / (weight + tokens)
            self.tokens = min(self.tokens + tokens, _MOST_TOKENS)

    def save(self) -> None:
        """Write the file; a folder that cannot be written keeps nothing."""
        if self.path is None or not self.tokens:
            return
        values = {"share": self.share, "tokens": self.tokens}
        with suppress(OSError):
            make_private(self.path.parent)
            write_private(self.path, [json.dumps(values).encode()])
