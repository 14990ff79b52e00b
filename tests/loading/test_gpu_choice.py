"""`auto` compares layers on a device with the processor alone. Workers stand for GPUs, and a GPU is
used where there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.backends import measure_passes
from edgespec.backends.llamacpp.remote import devices
from edgespec.backends.measure_layers import LayerTimes
from edgespec.control import curve_cache
from edgespec.control.backend_speeds import MEASURED_LEAD, remembered_choice
from edgespec.loading import choose_backend, layer_trial, pass_costs
from edgespec.loading.layer_trial import LayerTrial
from edgespec.memory.plan import placement
from edgespec.memory.plan.placement import Device
from edgespec.memory.plan.plan import Candidate, Plan
from edgespec.models.open_model import open_model
from edgespec.system.child_process import PeerError
from edgespec.system.size import MIB
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.llamacpp_workers import WHY, Worker, serving, workers
from tests.support.random_models import MODELS
from tests.support.random_models.recipe import write

NAMES = ("native", "llamacpp", "llamacpp on GPUs")
SETTINGS: dict[str, Any] = {"threads": 1, "context": 256}
SIZES = (1, 2, 4, 8)
HEAD_S = 1e-3


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One that has more memory than plans are to use."""
    if WHY:
        pytest.skip(WHY)
    with workers(48 * MIB) as made:
        yield made[0]


@pytest.fixture
def found(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """The devices of an invented machine where any model is a large one."""
    made = [Device(worker.address, "worker", 14 * MIB, description="a device")]
    monkeypatch.setattr(devices, "devices_for", lambda *asked: tuple(made))
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(choose_backend, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(pass_costs, "WHOLE_BYTES", 0)
    monkeypatch.setattr(layer_trial, "_READ_BYTES", 0)
    for module in (pass_costs, curve_cache):
        monkeypatch.setattr(module, "is_busy", lambda threads: False)
    return made


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds that a byte of layers takes for one node, by where it is; what is not there fails."""
    made = {"native": 2e-9, "here": 2e-9, "there": 4e-9, "apart": 4e-9}

    def timed(paths: Sequence[Path], plan: Plan, memory_bytes: int) -> list[LayerTimes]:
        place = "there" if plan.devices else "here" if plan.backend == "llamacpp" else "native"
        place = "apart" if plan.keeps_experts else place
        if place not in made:
            raise PeerError("the driver fell over")
        times = []
        for path in paths:
            layers = {size: made[place] * layer_bytes(path) * size for size in SIZES}
            times.append(LayerTimes({n: s + HEAD_S for n, s in layers.items()}, layers))
        return times

    monkeypatch.setattr(layer_trial, "layer_times", timed)
    monkeypatch.setattr(pass_costs.PassCosts, "_runs", lambda self, plan: True)
    return made


def layer_bytes(path: Path) -> int:
    with open_model(path) as file:
        return sum(t.size_bytes for t in file.tensors.values() if t.name.startswith("blk."))


def write_model(path: Path, **shape: int) -> Path:
    """Of eight layers of 2 MiB, that nothing was chosen for."""
    seed = int.from_bytes(os.urandom(4), "little")
    shape = {"dim": 256, "ffn": 1024, "layers": 8} | shape
    return write_gguf(path, type="F16", template=CHATML, context=2048, seed=seed, **shape)


def on_device(made: Plan) -> Candidate:
    """The candidate with layers elsewhere, whatever was chosen."""
    (one,) = [one for one in made.candidates if one.backend.startswith("llamacpp on ")]
    return one


@pytest.mark.slow
@serving
def test_layers_are_timed_where_they_would_be(
    found: list[Device], worker: Worker, tmp_path: Path
) -> None:
    """Really, in processes of their own: some layers on the worker and the others here."""
    found[:] = [Device(worker.address, "worker", worker.offer_bytes)]
    shape = {"dim": 512, "ffn": 2048}  # of 8 MiB: what they take is more than a round trip
    for number in range(5):  # a busy moment may let two layers take no longer than one
        made = edgespec.plan(write_model(tmp_path / f"{number}.gguf", **shape), **SETTINGS)
        one = on_device(made)
        if one.basis != "estimated":
            break
    assert one.backend == f"llamacpp on {found[0].name}"
    assert one.basis == "measured on 2 layers of this file", "\n".join(made.reasons)
    assert [size for size, ms in one.pass_ms] == [*SIZES] and all(ms > 0 for _, ms in one.pass_ms)
    measured = [each for each in made.candidates if each.basis.startswith("measured")]
    (chosen,) = [each for each in made.candidates if each.verdict == "chosen"]
    fastest = max(each.tokens_per_second for each in measured)
    assert chosen.tokens_per_second * MEASURED_LEAD >= fastest
    sibling = edgespec.plan(write_model(tmp_path / "sibling.gguf", **shape), **SETTINGS)
    assert on_device(sibling).basis == "remembered from the same shape"


@serving
def test_a_device_is_taken_where_it_is_measured_faster(
    found: list[Device], rates: dict[str, float], tmp_path: Path
) -> None:
    """What it costs follows from both sides, and without it another choice is made."""
    path = write_model(tmp_path / "m.gguf")
    made = edgespec.plan(path, **SETTINGS)
    assert made.label == "native" and not made.devices
    assert on_device(made).verdict.endswith(" times as fast")
    for kept in (tmp_path / "cache" / "shapes").iterdir():
        kept.unlink()
    rates["there"] = 1e-12
    made = edgespec.plan(path, **SETTINGS)
    assert made.label == on_device(made).backend == f"llamacpp on {found[0].name}"
    assert made.reasons[0].startswith(f"backend {made.label}: ")
    (part,) = made.devices
    assert 2 <= part.num_layers < 8 and part.head
    layer = layer_bytes(path) / 8
    for size, ms in on_device(made).pass_ms:
        there = rates["there"] * part.num_layers * layer * size
        here = rates["here"] * part.first_layer * layer * size
        assert ms == pytest.approx(1e3 * (HEAD_S + there + here))
    with open_model(path) as file:
        choice = remembered_choice(file.fingerprint, (*NAMES, found[0].name))
    assert choice is not None and choice.backend == NAMES[2]
    found.clear()
    assert edgespec.plan(path, **SETTINGS).label == "native"


@serving
@pytest.mark.parametrize("faster", ["there", "apart"])
def test_a_mixture_without_its_experts_is_a_candidate_of_its_own(
    found: list[Device],
    rates: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faster: str,
) -> None:
    """Layers without experts are timed without, and those that are whole as such."""
    monkeypatch.setattr(placement, "NEAR", ("gpu", "worker"))
    path = write(MODELS["qwen3moe"](), tmp_path / "m.gguf", type="Q8_0", seed=os.getpid())
    rates |= {"there": 1e-12, "apart": 8e-9 if faster == "there" else 1e-12}
    made = edgespec.plan(path, **SETTINGS)
    name = f"llamacpp on {found[0].name}"
    rows = {one.backend: one for one in made.candidates}
    assert rows[name].basis == rows[f"{name} without experts"].basis
    assert rows[name].basis == "measured on 2 layers of this file"
    assert made.label == name + " without experts" * (faster == "apart")
    (part,) = made.devices
    assert (part.without_experts > 0) == (faster == "apart")
    if part.without_experts:
        assert part.num_layers == 4 and part.without_experts < 4
        layer, rest = layer_bytes(path) / 4, part.num_layers - part.without_experts
        for size, ms in rows[made.label].pass_ms:
            there = layer * size * rest * rates["there"]
            apart = layer * size * part.without_experts * rates["apart"]
            assert ms == pytest.approx(1e3 * (HEAD_S + there + apart))
    assert edgespec.plan(path, **SETTINGS).label == made.label
    off = edgespec.plan(path, **SETTINGS, cpu_moe="off")
    assert "without experts" not in " ".join(one.backend for one in off.candidates)


@serving
def test_a_device_that_fails_is_not_taken(
    found: list[Device], rates: dict[str, float], tmp_path: Path
) -> None:
    del rates["there"]
    made = edgespec.plan(write_model(tmp_path / "m.gguf"), **SETTINGS)
    assert made.label == "native"
    assert on_device(made).verdict == "could not be timed"
    assert any("the driver fell over" in reason for reason in made.reasons)


@serving
def test_a_device_that_takes_too_long_is_not_taken(
    found: list[Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Really: it is given less time than a process needs to start."""
    monkeypatch.setattr(pass_costs, "WHOLE_BYTES", 512 * MIB)
    monkeypatch.setattr(measure_passes, "_DEVICE_LIMIT_S", 0.01)
    made = edgespec.plan(write_model(tmp_path / "m.gguf"), **SETTINGS)
    assert not made.devices
    assert on_device(made).verdict == "could not be timed"
    assert any("took longer than 0.01 s" in reason for reason in made.reasons)


@serving
@pytest.mark.parametrize("shared", [False, True])
def test_shared_memory_is_taken_only_as_measured(
    found: list[Device],
    rates: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,
) -> None:
    """An estimate may speak for a device with memory of its own."""
    found[:] = [Device(found[0].name, "worker", found[0].budget_bytes, shared=shared)]
    rates |= {"native": 1e-6, "here": 1e-6}
    monkeypatch.setattr(LayerTrial, "fits", lambda self, plan: not plan.devices)
    made = edgespec.plan(write_model(tmp_path / "m.gguf"), **SETTINGS)
    assert on_device(made).basis == "estimated"
    assert bool(made.devices) != shared
    assert on_device(made).verdict.startswith("not measured" if shared else "chosen")


@serving
def test_shared_memory_counts_in_the_budget(
    found: list[Device], rates: dict[str, float], tmp_path: Path
) -> None:
    found[:] = [Device(found[0].name, "worker", found[0].budget_bytes, shared=True)]
    rates["there"] = 1e-12
    made = edgespec.plan(write_model(tmp_path / "m.gguf"), **SETTINGS)
    (part,) = made.devices
    assert made.footprint["GPU"] == part.total_bytes
    assert part.describe().endswith("in this machine's memory")


def test_a_gpu_writes_what_it_writes_plainly(tmp_path: Path) -> None:
    """And holds no more than it was given."""
    if WHY or not devices.gpus():
        pytest.skip("llama.cpp finds no GPU here")
    path = write_model(tmp_path / "m.gguf", layers=2)
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    settings = SETTINGS | {"backend": "llamacpp", "vram": "1GiB", "max_nodes": 4}
    with edgespec.load(path, **settings) as engine:
        assert engine.plan.devices
        prompt = "the cat and the hat " * 10
        plain = engine.generate(prompt, speculation=False, **options)
        reply = engine.generate(prompt, **options)
        assert reply.token_ids == plain.token_ids
        assert reply.stats.peak_memory_bytes <= engine.plan.budget_bytes
        held = engine.scheduler.target.device_bytes()  # type: ignore[attr-defined]
        for part in engine.plan.devices:
            assert sum(held[part.name].values()) <= part.total_bytes <= part.budget_bytes
