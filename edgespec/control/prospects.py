"""What drafting for one sequence has brought lately, and when to ask for it again."""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from edgespec.control.accounts import EARNED, EARNED_BEFORE, NUM_OF_SEQUENCE, SILENCE, WAIT
from edgespec.drafting.market.account import CostlyStep
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.system.records import dataclass


def _numbers() -> NDArray[np.float64]:
    found = np.zeros(NUM_OF_SEQUENCE)
    found[EARNED] = EARNED_BEFORE
    return found


@dataclass(slots=True)
class Prospects:
    """One sequence's part in the controller's decisions, from step to step."""

    numbers: NDArray[np.float64] = field(default_factory=_numbers)
    """What the rules in `accounts.py` keep of it."""
    asked: bool = False
    """Whether its free drafters were asked in this step."""
    proposal: DraftTree | None = None
    """What was proposed, until its outcome is known."""

    def begin(self) -> None:
        """A reply begins: it may spend little of what earlier ones earned."""
        numbers = self.numbers
        numbers[SILENCE] = numbers[WAIT] = 0.0
        numbers[EARNED] = min(numbers[EARNED], EARNED_BEFORE)

    def waits(self) -> bool:
        """Whether its free drafters are not to be asked in this step, one of those to come."""
        if self.numbers.item(WAIT) > 0.0:
            self.numbers[WAIT] -= 1.0
            return True
        return False

    def was_right(self, outcome: StepOutcome, costly: CostlyStep) -> bool:
        """Whether the proposal's surest node was the next token; that of the free drafters where
        costly ones had a part in it.
        """
        if self.proposal is None:
            return False
        if costly.asked:
            return costly.others_right
        return bool(self.proposal.tokens[1] == outcome.new_tokens[0])
