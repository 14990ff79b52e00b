"""Overlap is kept where it is measured to pay, and trying it out costs next to nothing."""

from __future__ import annotations

import random

import pytest

from edgespec.control.overlap.choice import Choice


def play(
    choice: Choice,
    steps: int,
    gain: float,
    draft: float = 0.3,
    noise: float = 0.05,
    right: float = 1.0,
) -> tuple[float, float]:
    """Seconds of so many steps, and those of drafting in turn; overlap is `gain` times as fast."""
    rng, seconds, serial = random.Random(4), 0.0, 0.0
    for _ in range(steps):
        step_s = (0.010 + 0.010 * draft / (1 - draft)) * rng.gauss(1.0, noise)
        took = step_s / gain if choice.overlapped else step_s
        draft_s = step_s * draft * (not choice.overlapped)
        choice.observe(took, 3.0, draft_s, right=rng.random() < right)
        seconds, serial = seconds + took, serial + step_s
    return seconds, serial


@pytest.mark.parametrize("gain", [1.15, 1.3, 1.6])
def test_it_is_kept_where_it_pays(gain: float) -> None:
    choice = Choice("auto")
    seconds, serial = play(choice, 600, gain)
    assert choice.overlapped and choice.gain == pytest.approx(gain, rel=0.1)
    assert serial / seconds > 1 + 0.8 * (gain - 1)
    assert "times the speed of drafting in turn, as measured" in choice.why


@pytest.mark.parametrize("gain", [0.5, 0.8, 0.95])
def test_it_is_left_where_it_does_not(gain: float) -> None:
    choice = Choice("auto")
    seconds, serial = play(choice, 3000, gain)
    assert not choice.overlapped
    assert serial / seconds > 0.98


@pytest.mark.parametrize(
    ("slowdown", "hold_up", "right"),
    [(1.9, 0.0, 1.0), (1.3, 0.2, 1.0), (1.0, 0.95, 1.0), (1.0, 0.4, 0.3), (1.0, 0.0, 0.0)],
)
def test_it_is_not_tried_where_it_cannot_pay(slowdown: float, hold_up: float, right: float) -> None:
    choice = Choice("auto", slowdown, hold_up)
    play(choice, 500, 0.5, draft=0.2, right=right)
    assert not choice.overlapped and choice.gain == 0.0
    assert "expected" in choice.why


def test_a_trial_that_lost_much_is_long_the_last() -> None:
    choice = Choice("auto")
    seconds, serial = play(choice, 400, 0.5)
    assert serial / seconds > 0.96
    seconds, serial = play(choice, 2000, 0.5)
    assert serial / seconds > 0.99


def test_it_follows_a_machine_that_changes() -> None:
    choice = Choice("auto")
    play(choice, 400, 1.4)
    assert choice.overlapped
    play(choice, 1500, 0.7)
    assert not choice.overlapped
    play(choice, 5000, 1.4)
    assert choice.overlapped


@pytest.mark.parametrize("option", ["on", "off"])
def test_what_is_asked_for_stays(option: str) -> None:
    choice = Choice(option)
    play(choice, 200, 0.1)
    assert choice.overlapped == (option == "on")
    assert choice.why == f"{option}: as requested"
