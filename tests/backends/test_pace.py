"""The number of threads follows what passes take, and only while they are slow."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from edgespec.backends.native.pace import MOST_PATIENCE, Pace


def play(pace: Pace, passes: int, seconds: Callable[[int], float]) -> list[int]:
    """Threads used in each pass, when a pass on so many threads takes `seconds(threads)`."""
    used = []
    for _ in range(passes):
        used.append(pace.threads)
        pace.observe(1, seconds(pace.threads))
    return used


def quiet(threads: int) -> float:
    return 1.0 / threads


def one_core_taken(threads: int) -> float:
    """Of four: whoever has to wait for a core makes all wait."""
    return 1.0 / threads if threads < 4 else 3.0


def three_cores_taken(threads: int) -> float:
    return 1.0 if threads == 1 else 3.0


def test_nothing_is_tried_on_a_quiet_machine() -> None:
    assert set(play(Pace(4), 5000, quiet)) == {4}


def test_a_busy_core_is_left_alone_and_taken_back() -> None:
    pace = Pace(4)
    play(pace, 100, quiet)
    busy = play(pace, 1000, one_core_taken)
    assert busy.index(3) < 60
    assert busy.count(3) > 900
    after = play(pace, 2 * MOST_PATIENCE, quiet)
    assert after[-100:] == [4] * 100


def test_down_to_one_thread() -> None:
    pace = Pace(4)
    play(pace, 100, quiet)
    assert play(pace, 3000, three_cores_taken)[-100:].count(1) >= 90


def test_single_interruptions_change_nothing() -> None:
    """Every tenth pass is slow, whatever the threads: a trial of a few passes decides by median."""
    pace = Pace(2)
    count = iter(range(10**9))
    used = play(pace, 2000, lambda threads: quiet(threads) * (20 if next(count) % 10 == 0 else 1))
    assert used.count(2) > 1950


@given(st.integers(1, 64), st.lists(st.floats(1e-6, 10.0), max_size=300))
def test_threads_stay_within_the_team(most: int, times: list[float]) -> None:
    pace = Pace(most)
    for number, seconds in enumerate(times):
        assert 1 <= pace.threads <= most
        pace.observe(1 + number % 3, seconds)


def big_and_little(threads: int) -> float:
    """Two fast cores: a third thread is on a slow one, for which the others wait."""
    return 1.0 / threads if threads <= 2 else 0.8


def test_unequal_cores_are_tried_out() -> None:
    pace = Pace(4, unequal=True)
    used = play(pace, 300, big_and_little)
    assert used[:10] == [4] * 10
    assert used[-50:] == [2] * 50
    assert set(play(Pace(4, unequal=True), 300, quiet)[-50:]) == {4}
