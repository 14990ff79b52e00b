"""A backend is chosen by what passes cost here, and stays chosen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import edgespec
from edgespec.backends.llamacpp import library
from edgespec.control import curve_cache
from edgespec.control.backend_speeds import remembered_choice
from edgespec.control.curve_cache import remember_curve, was_under_load
from edgespec.loading import choose_backend, pass_costs
from edgespec.models.open_model import open_model
from tests.support.gguf_models import write_gguf
from tests.support.targets import missing

WHY = missing("llamacpp")
installed = pytest.mark.skipif(bool(WHY), reason=WHY)
NAMES = ("native", "llamacpp")
SETTINGS = {"threads": 1, "context": 256}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model that counts as worth comparing, on a machine where nothing else runs."""
    monkeypatch.setattr(choose_backend, "SMALLEST_BYTES", 0)
    for module in (pass_costs, curve_cache):
        monkeypatch.setattr(module, "is_busy", lambda threads: False)
    seed = int.from_bytes(os.urandom(4), "little")  # nothing was chosen for it before
    return write_gguf(tmp_path / "m.gguf", seed=seed)


def set_curves(model: Path, **seconds: float) -> None:
    """Pretend that a pass was measured to take this long."""
    for name, one in seconds.items():
        made = edgespec.plan(model, backend=name, **SETTINGS)
        remember_curve(model, made, {size: one * size for size in range(1, 17)})


@installed
def test_backends_are_measured_and_the_choice_is_kept(model: Path) -> None:
    with edgespec.load(model, backend="native", **SETTINGS):
        pass  # compiled, and measured
    made = edgespec.plan(model, **SETTINGS)
    assert {one.backend: one.basis for one in made.candidates} == dict.fromkeys(NAMES, "measured")
    assert all(one.tokens_per_second > 0 < one.planned_bytes for one in made.candidates)
    assert sum(one.verdict == "chosen" for one in made.candidates) == 1
    assert "tokens/s expected (measured)" in made.reasons[0]
    with edgespec.load(model, **SETTINGS) as engine:
        assert engine.plan.backend == made.backend
        engine.generate("the cat", max_tokens=8, seed=1)


@installed
def test_a_faster_backend_is_taken_once_it_is_confirmed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def again(path: Path, plan: edgespec.Plan) -> dict[int, float]:
        asked.append(plan.backend)
        slow = 1e-6 if confirmed and plan.backend == "llamacpp" else 1e-3
        return {size: slow * size for size in range(1, 17)}

    monkeypatch.setattr(pass_costs, "pass_seconds", again)
    with edgespec.load(model, backend="native", **SETTINGS):
        pass
    for confirmed, taken in ((False, "native"), (True, "llamacpp")):
        set_curves(model, native=1.0 if not confirmed else 1e-3, llamacpp=1e-3)
        if confirmed:
            set_curves(model, llamacpp=1e-4)
        asked.clear()
        made = edgespec.plan(model, **SETTINGS)
        assert made.backend == taken
        assert sorted(asked) == sorted(NAMES)
    with open_model(model) as file:
        first = remembered_choice(file.fingerprint, NAMES)
        assert first is not None and not first.settled  # until another start finds the same
        edgespec.plan(model, **SETTINGS)
        second = remembered_choice(file.fingerprint, NAMES)
        assert second is not None and second.settled
    set_curves(model, native=1e-4 / 1.04)  # too small a lead
    asked.clear()
    assert edgespec.plan(model, **SETTINGS).backend == "llamacpp"
    assert not asked
    monkeypatch.setattr(choose_backend, "select", None)  # nothing is compared any more
    with edgespec.load(model, **SETTINGS) as engine:
        assert engine.plan.backend == "llamacpp"
        assert "measured to be fastest before" in engine.plan.reasons[0]
    with edgespec.load(model, backend="native", **SETTINGS) as engine:
        assert engine.plan.backend == "native"


def test_an_extra_that_is_missing_is_a_line_of_advice(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "package_folder", lambda: None)
    made = edgespec.plan(model, **SETTINGS)
    own, other = made.candidates
    assert (own.backend, own.verdict) == ("native", "chosen")
    assert (other.backend, other.basis) == ("llamacpp", "")
    assert "pip install 'edgespec[llamacpp]'" in other.verdict


@installed
def test_small_models_are_not_compared(tmp_path: Path) -> None:
    made = edgespec.plan(write_gguf(tmp_path / "small.gguf"), **SETTINGS)
    assert made.backend == "native"
    assert "too small to compare" in made.reasons[0]
    assert [one.backend for one in made.candidates] == ["native"]


def test_a_figure_taken_under_load_is_taken_again(model: Path) -> None:
    """One that is far too slow is put right by the next plan, whatever else runs meanwhile."""
    with edgespec.load(model, backend="native", **SETTINGS):
        pass  # compiles what measuring needs
    made = edgespec.plan(model, backend="native", **SETTINGS)
    slow = {size: 10.0 * size for size in range(1, 17)}
    remember_curve(model, made, slow, under_load=True)
    assert was_under_load(model, made)
    (found,) = [
        one
        for one in edgespec.plan(model, backend="native", **SETTINGS).candidates
        if one.backend == "native"
    ]
    assert dict(found.pass_ms)[1] < 1000.0
    assert found.basis in ("measured", "measured under load")
    assert was_under_load(model, made) == (found.basis == "measured under load")
    remember_curve(model, made, slow)
    assert not was_under_load(model, made)
