"""What drafting for one sequence has brought lately, and when to ask for it again."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.drafting.market.account import CostlyStep
from edgespec.drafting.tree import DraftTree, StepOutcome

_MOST_EARNED = 4.0
"""What a sequence keeps of its gains to ask on with, in plain passes ..."""
_EARNED_BEFORE = 0.5
"""... and what a reply has of them that has gained nothing itself."""


@dataclass(slots=True)
class Prospects:
    """One sequence's part in the controller's decisions, from step to step."""

    earned: float = _EARNED_BEFORE
    """What asking has gained and not yet spent on being wrong, in plain passes."""
    silence: int = 0
    wait: int = 0
    """Steps to come in which its free drafters are not to be asked."""
    asked: bool = False
    """Whether they were asked in this step."""
    proposal: DraftTree | None = None
    """What was proposed, until its outcome is known."""

    def begin(self) -> None:
        """A reply begins."""
        self.silence = self.wait = 0
        self.earned = min(self.earned, _EARNED_BEFORE)

    def earn(self, passes: float) -> None:
        """Asking has brought so much, its own price taken off."""
        self.earned = min(self.earned + passes, _MOST_EARNED)

    def was_right(self, outcome: StepOutcome, costly: CostlyStep) -> bool:
        """Whether the proposal's surest node was the next token; that of the free drafters where
        costly ones had a part in it.
        """
        if self.proposal is None:
            return False
        if costly.asked:
            return costly.others_right
        return bool(self.proposal.tokens[1] == outcome.new_tokens[0])
