"""Measuring ends in time where passes take long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgespec.backends import pass_times as module
from edgespec.backends.base import Target


@pytest.mark.parametrize(("seconds", "rounds"), [(0.001, 40), (0.5, 2), (30.0, 1)])
def test_a_busy_machine_ends_it_after_a_few_seconds(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: int
) -> None:
    now, passes = [0.0], [0]

    def time_pass(target: Target, num_nodes: int) -> float:
        del target, num_nodes
        passes[0] += 1
        now[0] += seconds
        return seconds

    monkeypatch.setattr(module, "time_pass", time_pass)
    monkeypatch.setattr(module, "curve_sizes", lambda target: (1, 2, 4, 8))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    found = module.pass_times(cast(Any, None), trials=40, least=True)
    assert found == pytest.approx(dict.fromkeys((1, 2, 4, 8), seconds))
    assert passes[0] == 4 * (rounds + 1)  # the first round is not counted
