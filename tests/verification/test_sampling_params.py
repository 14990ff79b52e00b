from __future__ import annotations

from typing import Any

import pytest

from edgespec.errors import OptionError
from edgespec.verification.sampling import SamplingParams


def test_defaults_are_the_usual_ones() -> None:
    params = SamplingParams(seed=1)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert params.repetition_penalty == 1.0
    assert not params.greedy


def test_a_seed_is_found_when_none_is_given() -> None:
    assert len({SamplingParams().seed for _ in range(8)}) > 1


@pytest.mark.parametrize(
    "name, value, found",
    [
        ("temperature", -0.1, "temperature is -0.1"),
        ("temperature", float("nan"), "temperature is nan"),
        ("temperature", float("inf"), "temperature is inf"),
        ("temperature", "hot", "temperature must be a number"),
        ("top_k", -1, "top_k is -1"),
        ("top_k", 1.5, "top_k must be a whole number"),
        ("top_p", 1.01, "top_p is 1.01"),
        ("min_p", -1.0, "min_p is -1"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0"),
        ("repetition_penalty", 11, "repetition_penalty is 11"),
        ("repetition_window", 1025, "repetition_window is 1025"),
        ("seed", -1, "seed is -1"),
        ("seed", 2**64, "seed is 18446744073709551616"),
        ("seed", True, "seed must be a whole number"),
    ],
)
def test_a_value_that_means_nothing_is_refused(name: str, value: Any, found: str) -> None:
    with pytest.raises(OptionError) as caught:
        SamplingParams(**{name: value})
    assert found in str(caught.value)
