"""What drafting for one sequence has brought lately, and when to ask for it again."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.drafting.market.account import CostlyStep
from edgespec.drafting.tree import DraftTree, StepOutcome


@dataclass(slots=True)
class Prospects:
    """One sequence's part in the controller's decisions, from step to step."""

    gain_s: float = 0.0
    """What asking has gained lately, its own price left out."""
    silence: int = 0
    wait: int = 0
    """Steps to come in which its free drafters are not to be asked."""
    asked: bool = False
    """Whether they were asked in this step."""
    proposal: DraftTree | None = None
    """What was proposed, until its outcome is known."""

    def was_right(self, outcome: StepOutcome, costly: CostlyStep) -> bool:
        """Whether the proposal's surest node was the next token; that of the free drafters where
        costly ones had a part in it.
        """
        if self.proposal is None:
            return False
        if costly.asked:
            return costly.others_right
        return bool(self.proposal.tokens[1] == outcome.new_tokens[0])
