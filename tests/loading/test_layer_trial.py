"""Backends of a large file are compared by timing a few layers, once for all files of its shape."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.backends import measure_layers
from edgespec.backends.llamacpp import library
from edgespec.backends.measure_layers import LayerTimes, layer_times
from edgespec.control import curve_cache
from edgespec.control.backend_speeds import remembered_choice
from edgespec.errors import BackendError
from edgespec.loading import choose_backend, layer_trial, pass_costs
from edgespec.loading.layer_trial import LayerTrial
from edgespec.memory.plan.plan import Plan
from edgespec.models.open_model import open_model
from edgespec.system.child_process import PeerError
from tests.support.gguf_models import write_gguf
from tests.support.random_models import MODELS, write
from tests.support.targets import missing

WHY = missing("llamacpp")
installed = pytest.mark.skipif(bool(WHY), reason=WHY)
NAMES = ("native", "llamacpp")
SETTINGS = {"threads": 1, "context": 256}
SAME = "remembered from the same shape"


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any model is a large one, on a machine where nothing else runs."""
    monkeypatch.setattr(choose_backend, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(pass_costs, "WHOLE_BYTES", 0)
    for module in (pass_costs, curve_cache):
        monkeypatch.setattr(module, "is_busy", lambda threads: False)


class Timed:
    """Stands for the process that times layers: costs that are known, by bytes."""

    def __init__(self, **seconds_by_byte: float) -> None:
        self.rates = seconds_by_byte
        self.asked: list[str] = []

    def __call__(self, paths: Sequence[Path], plan: Plan, memory_bytes: int) -> list[LayerTimes]:
        self.asked.append(plan.backend)
        rate = self.rates.get(plan.backend)
        if rate is None:
            raise PeerError(f"{plan.backend} failed: it fell over")
        assert 0 < memory_bytes < plan.budget_bytes
        found = []
        for path in paths:
            with open_model(path) as file:
                inner = [t.size_bytes for t in file.tensors.values() if t.name.startswith("blk.")]
                layers = {size: rate * sum(inner) * size for size in (1, 2, 4, 8)}
                whole = {size: seconds + 1e-3 for size, seconds in layers.items()}
                found.append(LayerTimes(whole, layers))
        return found


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Timed:
    """With an empty cache."""
    made = Timed(native=1e-9, llamacpp=2e-9)
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(layer_trial, "layer_times", made)
    monkeypatch.setattr(pass_costs.PassCosts, "_runs", lambda self, plan: True)
    return made


def write_model(path: Path, **settings: Any) -> Path:
    """One that nothing was chosen for."""
    seed = int.from_bytes(os.urandom(4), "little")
    return write_gguf(path, **({"seed": seed, "layers": 6} | settings))


def bases(made: edgespec.Plan) -> dict[str, str]:
    return {one.backend: one.basis for one in made.candidates}


@installed
def test_a_model_is_timed_and_its_family_remembers(tmp_path: Path) -> None:
    """By both backends, in processes of their own."""
    odd = int.from_bytes(os.urandom(2), "little") % 4000
    shape = {"ffn": 32 * (1 + odd % 32), "vocab": 400 + odd}
    path = write_model(tmp_path / "m.gguf", **shape)
    with edgespec.load(path, backend="native", **SETTINGS):
        pass  # compiled
    for old in (layer_trial.cache_folder() / "curves").glob("*.json"):
        if old.stat().st_mtime >= path.stat().st_mtime:
            old.unlink()  # what whole passes took
    made = edgespec.plan(path, **SETTINGS)
    measured = set(bases(made).values())
    assert measured == {"measured on 6 layers of this file"}, made.reasons
    assert all(dict(one.pass_ms)[1] > 0 for one in made.candidates)
    sibling = write_model(tmp_path / "sibling.gguf", **shape)
    made = edgespec.plan(sibling, **SETTINGS)
    assert bases(made) == dict.fromkeys(NAMES, SAME)
    assert SAME in made.reasons[0]
    assert not [*layer_trial.cache_folder().glob(f"trial-{os.getpid()}-*")]


@installed
def test_costs_of_the_whole_follow_from_layers(timed: Timed, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=40)
    made = edgespec.plan(path, **SETTINGS)
    with open_model(path) as file:
        inner = sum(t.size_bytes for t in file.tensors.values() if t.name.startswith("blk."))
    for one in made.candidates:
        assert one.basis == "measured on 32 layers of this file"
        rate = timed.rates[one.backend]
        for size, ms in one.pass_ms:
            assert ms == pytest.approx(1e3 * (1e-3 + rate * inner * size))
    assert made.backend == "native"
    assert timed.asked == [*NAMES]
    with open_model(path) as file:
        choice = remembered_choice(file.fingerprint, NAMES)
        assert choice is not None and choice.settled


@installed
def test_a_faster_backend_is_timed_twice_and_then_known(timed: Timed, tmp_path: Path) -> None:
    timed.rates["llamacpp"] = 1e-10
    assert edgespec.plan(write_model(tmp_path / "m.gguf"), **SETTINGS).backend == "llamacpp"
    assert timed.asked == [*NAMES, *NAMES]
    timed.asked.clear()
    sibling = write_model(tmp_path / "sibling.gguf")
    for _ in range(2):
        assert edgespec.plan(sibling, **SETTINGS).backend == "llamacpp"
    other = write_model(tmp_path / "other.gguf", types={"blk.0.ffn_up.weight": "F16"})
    assert not timed.asked
    edgespec.plan(other, **SETTINGS)
    assert timed.asked  # another type is another shape


@installed
@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{}", '{"curve": {"1": -1}, "layers": 2, "model": "", "under_load": false}',
     '{"curve": {"1": 1}, "layers": "9", "model": "", "under_load": false}'],
)  # fmt: skip
def test_damaged_memories_are_ignored(timed: Timed, tmp_path: Path, damage: str) -> None:
    edgespec.plan(write_model(tmp_path / "m.gguf"), **SETTINGS)
    kept = [*(tmp_path / "cache" / "shapes").iterdir()]
    assert len(kept) == 2
    for one in kept:
        one.write_text(damage)
    timed.asked.clear()
    made = edgespec.plan(write_model(tmp_path / "sibling.gguf"), **SETTINGS)
    assert timed.asked == [*NAMES]
    assert SAME not in bases(made).values()


@installed
@pytest.mark.parametrize("busy", [False, True])
def test_one_that_cannot_be_timed_is_estimated_and_says_why(
    timed: Timed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Each start tries again only where other programs may have been the reason."""
    del timed.rates["llamacpp"]
    monkeypatch.setattr(pass_costs, "is_busy", lambda threads: busy)
    path = write_model(tmp_path / "m.gguf")
    made = edgespec.plan(path, **SETTINGS)
    own = "measured on 6 layers of this file" + " under load" * busy
    assert bases(made) == {"native": own, "llamacpp": "estimated"}
    sentence = "llamacpp is estimated, as its layers could not be timed: llamacpp failed"
    assert any(reason.startswith(sentence) for reason in made.reasons)
    with open_model(path) as file:
        choice = remembered_choice(file.fingerprint, NAMES)
        assert choice is not None and choice.settled != busy


def test_nothing_is_timed_for_one_backend(
    timed: Timed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "package_folder", lambda: None)
    made = edgespec.plan(write_model(tmp_path / "m.gguf"), **SETTINGS)
    assert made.backend == "native"
    assert not timed.asked


@installed
def test_times_that_contradict_each_other_are_none(timed: Timed, tmp_path: Path) -> None:
    timed.rates["native"] = 0.0
    made = edgespec.plan(write_model(tmp_path / "m.gguf"), **SETTINGS)
    assert bases(made)["native"] == "estimated"
    assert any("took no longer than" in reason for reason in made.reasons)


def test_a_trial_keeps_to_the_budget(timed: Timed, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    made = edgespec.plan(path, backend="native", **SETTINGS)
    with open_model(path) as file, LayerTrial(file) as trial:
        assert trial.fits(made)
        assert not trial.fits(replace(made, budget_bytes=made.planned_bytes))


@pytest.mark.parametrize(
    "answer",
    [7, {}, [[]], [[{"1": 1.0}]], [[{"1": 1.0}, {"2": 1.0}]], [[{"1": math.nan}, {"1": 1.0}]],
     [[{"1": -1}, {"1": 1}]], [[{"1": "x"}, {"1": 1}]]],
)  # fmt: skip
def test_answers_that_are_no_times_are_refused(answer: Any) -> None:
    assert measure_layers._checked(answer, [1]) == []
    assert len(measure_layers._checked([[{"1": 1.0}, {"1": 0.5}]], [1])) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such limit")
def test_the_process_has_a_limit(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    made = edgespec.plan(path, backend="native", **SETTINGS)
    with pytest.raises(PeerError):
        layer_times([path], made, -64 << 20)


def test_what_a_killed_process_left_is_removed(timed: Timed, tmp_path: Path) -> None:
    left = tmp_path / "cache" / f"trial-{2**22 + 1}-x"
    left.mkdir(parents=True)
    path = write_model(tmp_path / "m.gguf")
    made = edgespec.plan(path, backend="native", **SETTINGS)
    with open_model(path) as file, LayerTrial(file) as trial:
        trial.curve(made)
        assert not left.exists()
        assert [*(tmp_path / "cache").glob("trial-*")]
    assert not [*(tmp_path / "cache").glob("trial-*")]


@pytest.mark.parametrize(
    ("name", "first", "last"), [("qwen3", 1, 2), ("glm4moe", 1, 2), ("lfm2", 1, 4)]
)
def test_kinds_of_layers_are_timed_as_they_are_mixed(
    name: str, first: int, last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_trial, "_READ_BYTES", 0)
    write(MODELS[name](), tmp_path / "m.gguf")
    with open_model(tmp_path / "m.gguf") as file, LayerTrial(file) as trial:
        assert trial._counts == (first, last)
        assert trial.layers == last


def test_embeddings_of_all_layers_cannot_be_cut(timed: Timed, tmp_path: Path) -> None:
    write(MODELS["gemma3n"](), tmp_path / "m.gguf")
    with open_model(tmp_path / "m.gguf") as file, LayerTrial(file) as trial:
        made = edgespec.plan(tmp_path / "m.gguf", backend="native", **SETTINGS)
        with pytest.raises(BackendError, match="cannot be taken apart"):
            trial.curve(made)
