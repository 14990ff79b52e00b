from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.control.cost_curve import CostCurve
from edgespec.errors import BackendError

MEASURED = {1: 0.010, 2: 0.010, 4: 0.012, 8: 0.020}


def test_between_measured_sizes_it_is_linear_and_it_never_falls() -> None:
    curve = CostCurve(MEASURED | {1: 0.011, 2: 0.009})
    assert curve.seconds(1) == pytest.approx(0.009)
    assert curve.seconds(2) == pytest.approx(0.009)
    assert curve.seconds(3) == pytest.approx(0.0105)
    assert curve.seconds(6) == pytest.approx(0.016)
    assert np.all(np.diff(curve.table) >= 0)


@given(
    true=st.lists(st.floats(0.001, 0.5), min_size=32, max_size=32),
    held_up=st.sets(st.sampled_from([2, 3, 4, 6, 8, 12, 16, 24, 32])),
)
def test_no_size_is_dearer_than_a_larger_one_or_than_two_passes(
    true: list[float], held_up: set[int]
) -> None:
    seconds = np.minimum(np.cumsum([1.0, *true[1:]]), np.arange(1, 33))
    measured = {n: float(seconds[n - 1]) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}
    measured |= {n: 9.0 * measured[n] for n in held_up}
    table = CostCurve(measured).table
    assert table[0] == 1.0
    assert np.all(np.diff(table) >= 0)
    for size in range(2, 33):
        assert table[size - 1] <= min(table[a - 1] + table[size - a - 1] for a in range(1, size))


def test_one_size_that_was_held_up_is_not_believed() -> None:
    curve = CostCurve({1: 0.5, 2: 0.6, 4: 4.8, 8: 1.1, 16: 2.0})
    assert curve.seconds(4) <= 1.1
    assert curve.seconds(8) == pytest.approx(1.1)


def test_beyond_the_last_size_it_goes_on_at_the_mean_slope() -> None:
    curve = CostCurve(MEASURED, max_nodes=16)
    assert curve.seconds(15) == pytest.approx(0.020 + 7 * 0.010 / 7)
    assert curve.seconds(99) == curve.seconds(16)


def test_a_single_measurement_promises_nothing_for_more_nodes() -> None:
    assert CostCurve({1: 0.01}, max_nodes=4).seconds(4) == pytest.approx(0.04)


def test_a_slower_machine_raises_the_whole_curve() -> None:
    curve = CostCurve(MEASURED)
    for step in range(150):
        size = (1, 4, 8)[step % 3]
        curve.update(size, 2 * CostCurve(MEASURED).seconds(size))
    for size in (1, 4, 8):
        assert curve.seconds(size) == pytest.approx(2 * CostCurve(MEASURED).seconds(size), rel=0.08)


def test_a_size_that_is_dearer_than_measured_is_noticed() -> None:
    curve = CostCurve(MEASURED)
    for _ in range(150):
        curve.update(1, 0.010)
        curve.update(8, 0.040)
    assert curve.seconds(8) / curve.seconds(1) == pytest.approx(4.0, rel=0.15)
    assert np.all(np.diff(curve.table) >= 0)


@pytest.mark.parametrize("pace", [0.5, 1.8])
@pytest.mark.parametrize("rare", [(4, 5, 6), (1, 1, 1, 4, 6)])
def test_measured_beside_other_programs_it_keeps_the_ratios_between_sizes(
    pace: float, rare: tuple[int, ...]
) -> None:
    """Even while there is no plain pass to compare with, as long as drafts are right."""
    true, rng = CostCurve(MEASURED), np.random.default_rng(1)
    curve = CostCurve({size: pace * seconds for size, seconds in MEASURED.items()})
    for _ in range(25):
        size = int(rng.choice(rare))
        curve.update(size, true.seconds(size) * rng.lognormal(0.0, 0.05))
    ratio = true.seconds(8) / true.seconds(1)
    assert curve.seconds(8) / curve.seconds(1) == pytest.approx(ratio, rel=0.1)
    assert curve.seconds(4) == pytest.approx(true.seconds(4), rel=0.1)


def test_it_is_a_kalman_filter_of_level_and_shape() -> None:
    """The same as with whole matrices, and surprises small enough to count whole."""
    curve, rng = CostCurve(MEASURED), np.random.default_rng(2)
    most = curve.max_nodes
    near = np.maximum(0.0, 1.0 - abs(np.subtract.outer(range(most), range(most))) / 4.0)
    near[0] = near[:, 0] = 0.0
    drift = 0.003**2 * near
    doubt = 0.2**2 * near
    doubt[0, 0], drift[0, 0] = 0.4**2, 0.03**2
    state, base = np.zeros(most), np.log([curve.seconds(size) for size in range(1, most + 1)])
    for _ in range(40):
        index = int(rng.integers(most))
        sees = np.eye(most)[0] + (np.eye(most)[index] if index else 0.0)
        logarithm = base[index] + sees @ state + rng.normal(0.0, 0.05)
        doubt += drift
        gain = doubt @ sees / (sees @ doubt @ sees + 0.1**2)
        state += gain * (logarithm - base[index] - sees @ state)
        doubt -= np.outer(gain, sees @ doubt)
        curve.update(index + 1, float(np.exp(logarithm)))
    shape = np.where(np.arange(most) > 0, state, 0.0)
    expected = np.maximum.accumulate(np.exp(base + state[0] + shape))
    np.testing.assert_allclose(curve.table, expected, rtol=1e-9)


def test_one_hiccup_bends_little() -> None:
    curve = CostCurve(MEASURED)
    for step in range(20):
        curve.update(1 if step % 2 else 4, 0.010 if step % 2 else 0.012)
    curve.update(4, 10.0)
    assert curve.seconds(1) < 1.1 * 0.010
    assert curve.seconds(4) < 1.15 * 0.012


def test_noise_moves_it_little() -> None:
    curve = CostCurve(MEASURED)
    rng = np.random.default_rng(1)
    for _ in range(500):
        size = int(rng.integers(1, 9))
        curve.update(size, CostCurve(MEASURED).seconds(size) * rng.lognormal(0.0, 0.1))
    for size in (1, 4, 8):
        assert curve.seconds(size) == pytest.approx(CostCurve(MEASURED).seconds(size), rel=0.12)


@pytest.mark.parametrize("measured", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {1: float("nan")}])
def test_measurements_that_mean_nothing_are_refused(measured: dict[int, float]) -> None:
    with pytest.raises(BackendError, match="cost curve needs measured passes"):
        CostCurve(measured)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_timings_that_mean_nothing_are_ignored(seconds: float) -> None:
    curve = CostCurve(MEASURED)
    curve.update(1, seconds)
    assert curve.seconds(1) == pytest.approx(0.010)
