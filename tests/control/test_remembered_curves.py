from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.backends.passes import Progress
from edgespec.control import curve_cache
from edgespec.control.curve_cache import measured_curve
from edgespec.memory.plan.plan import Footprint, Plan
from tests.support.facts import facts_in

TRUE = {1: 1.0, 2: 1.1, 4: 1.4, 8: 2.2}


class Timed:
    """Passes that take what is given, times what other programs do to them."""

    def __init__(self, disturbed: Callable[[int], float] = lambda size: 1.0) -> None:
        self.disturbed = disturbed
        self.measured = 0

    def curve_sizes(self) -> tuple[int, ...]:
        return tuple(TRUE)

    def time_pass(self, size: int) -> float:
        return TRUE[size] * self.disturbed(size)

    def pass_times(self, progress: Progress | None = None) -> dict[int, float]:
        self.measured += 1
        return {size: self.time_pass(size) for size in TRUE}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(curve_cache, "fact_path", facts_in(tmp_path))
    for name in ("curve_sizes", "time_pass", "pass_times"):
        monkeypatch.setattr(curve_cache, name, getattr(Timed, name))
    (tmp_path / "model.gguf").write_bytes(b"a model")
    return tmp_path / "model.gguf"


PLAN = Plan(
    backend="native",
    quantisation="Q8_0",
    context_length=64,
    kv_type="f16",
    max_nodes=8,
    threads=1,
    prefill_chunk=8,
    gpu_layers=0,
    budget_bytes=1 << 20,
    footprint=Footprint(()),
)


def curve(path: Path, target: Timed) -> dict[int, float]:
    return measured_curve(path, PLAN, target)  # type: ignore[arg-type]


def test_a_curve_is_measured_once(place: Path) -> None:
    first, again = Timed(), Timed()
    assert curve(place, first) == curve(place, again) == TRUE
    assert (first.measured, again.measured) == (1, 0)


def test_a_size_that_was_held_up_when_it_was_measured_is_put_right_for_good(place: Path) -> None:
    assert curve(place, Timed(lambda size: 6.0 if size == 4 else 1.0))[4] == pytest.approx(8.4)
    assert curve(place, Timed()) == pytest.approx(TRUE)
    (file,) = (place.parent / "curves").iterdir()
    assert json.loads(file.read_text())["4"] == pytest.approx(1.4)


def test_a_size_that_is_held_up_now_stays_as_it_is_remembered(place: Path) -> None:
    curve(place, Timed())
    assert curve(place, Timed(lambda size: 6.0 if size == 4 else 1.0)) == TRUE


def test_another_level_means_measuring_again(place: Path) -> None:
    curve(place, Timed(lambda size: 5.0))
    target = Timed()
    assert curve(place, target) == TRUE
    assert target.measured == 1
