"""A model that thinks all tokens equally likely: what compiles the code that model drafters use."""

from __future__ import annotations

import numpy as np

from edgespec.backends.passes import Logits
from edgespec.drafting.model.chains import learn_shadows
from edgespec.drafting.model.model_drafter import LONGEST, ModelDrafter, with_maxima
from edgespec.drafting.tree import StepOutcome


class FlatDrafter(ModelDrafter):
    """Drafts by the target's noise alone."""

    name = "flat"

    def __init__(self, vocab_size: int, *, source: int = 1) -> None:
        super().__init__(vocab_size, source=source)
        self._logits = np.zeros((1, vocab_size), np.float32)
        self._prices = np.linspace(1.0, 2.0, LONGEST)

    def observe(self, outcome: StepOutcome) -> None:
        super().observe(outcome)
        shadows = np.zeros(1, np.int64)
        learn_shadows(self._rates[np.newaxis], shadows, 1, int(outcome.new_tokens[0]))

    def _room(self) -> int:
        return LONGEST

    def _row(self, token: int, depth: int) -> tuple[Logits, Logits]:
        return with_maxima(self._logits, None)
