"""Compile, or load from the cache, everything a reply needs, before any model is in memory."""

from __future__ import annotations

import numpy as np

from edgespec import backends
from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.drafting.base import StepOutcome
from edgespec.drafting.suffix_automaton import MIN_BYTES, SuffixAutomatonDrafter
from edgespec.verification.acceptance import Verifier
from edgespec.verification.sampling import SamplingParams


def warm_up(backend: str) -> None:
    """Run one step of everything on a text of four tokens."""
    backends.warm_up(backend)
    text = [1, 2, 1, 2]
    drafter = SuffixAutomatonDrafter(MIN_BYTES)
    controller = Controller(CostCurve({1: 1.0, 2: 1.1, 4: 1.2}), 4)
    drafter.reset(text)
    tree = drafter.propose(3)
    tree = tree.take(1 + max(controller.choose(tree, 0.1), 1))
    logits = np.zeros((len(tree), 16), np.float32)
    verifier = Verifier(16, SamplingParams(seed=0), len(tree))
    verdict = verifier.verify(logits, tree.tokens, tree.parents, text, len(text) - 1)
    tokens = [*tree.tokens[verdict.path[1:]].tolist(), verdict.bonus]
    outcome = StepOutcome(tree, verdict.path, verdict.bonus, tokens)
    drafter.observe(outcome)
    drafter.extend(tokens)
    controller.observe(outcome, 1.0, 0.1)
