from __future__ import annotations

import numpy as np
import pytest

from edgespec.control.statistics import ReplyStats
from edgespec.drafting.tree import DraftTree, StepOutcome


def test_an_empty_reply_has_neutral_numbers() -> None:
    stats = ReplyStats()
    assert (stats.tokens_per_step, stats.tokens_per_second, stats.estimated_speedup) == (0, 0, 1)


def test_steps_add_up() -> None:
    stats = ReplyStats(("root", "suffix-automaton", "other"))
    tree = DraftTree(
        np.array([1, 2, 3, 4], np.int32),
        np.array([-1, 0, 0, 2], np.int16),
        np.ones(4, np.float32),
        np.array([0, 1, 2, 2], np.uint8),
    )
    outcome = StepOutcome(tree, [0, 2, 3], 9, [3, 4, 9])
    stats.record(outcome, 0.02, 0.01, {"suffix-automaton": 0.001})
    stats.record(StepOutcome(DraftTree.root(9), [0], 5, [5]), 0.01, 0.01)
    assert stats.as_dict() == {
        "output_tokens": 4,
        "steps": 2,
        "tokens_per_second": pytest.approx(4 / 0.03),
        "tokens_per_step": 2.0,
        "drafted": 3,
        "accepted": 2,
        "by_source": {
            "suffix-automaton": {"drafted": 1, "accepted": 0, "seconds": 0.001},
            "other": {"drafted": 2, "accepted": 2, "seconds": 0.0},
        },
        "estimated_speedup": pytest.approx(4 * 0.01 / 0.03),
    }
