"""Experts of a mixture stay here while their layers are on a device; a worker stands for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.backends.llamacpp.remote import devices
from edgespec.backends.llamacpp.remote.offload import Offload
from edgespec.backends.measure_layers import layer_times
from edgespec.backends.measure_passes import pass_seconds
from edgespec.errors import OptionError
from edgespec.loading.layer_trial import LayerTrial
from edgespec.memory.plan import placement
from edgespec.memory.plan.placement import EXPERTS
from edgespec.models.open_model import open_model
from edgespec.system.size import GIB, MIB
from tests.support.gguf_models import write_gguf
from tests.support.llamacpp_workers import WHY, Worker, load, serving, workers
from tests.support.random_models import MODELS
from tests.support.random_models.recipe import write

NAMES = ("qwen3moe", "gpt-oss")
PROMPT = "the cat and the hat " * 10
REPLY: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
PARTS = ("gate", "up", "down")
ROUNDING = 3 * 16 * 1024
"""Log lines tell MiB with two decimals."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Mixtures of four layers of which each has 2 to 3 MiB of experts; gpt-oss's have biases."""
    folder = tmp_path_factory.mktemp("mixtures")
    return {name: write(MODELS[name](), folder / f"{name}.gguf", type="Q8_0") for name in NAMES}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    if WHY:
        pytest.skip(WHY)
    with workers(48 * MIB) as made:
        yield made[0]


@pytest.fixture(scope="module")
def expected(paths: dict[str, Path]) -> dict[str, list[int]]:
    """What this processor writes alone."""
    found = {}
    for name, path in paths.items():
        with load(path) as engine:
            found[name] = list(engine.generate(PROMPT, **REPLY).token_ids)
    return found


@serving
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("cpu_moe", "layers"), [("off", 0), ("2", 2), ("all", 4)])
def test_the_text_is_the_same_and_every_byte_is_planned(
    paths: dict[str, Path], worker: Worker, expected: dict[str, list[int]],
    name: str, cpu_moe: str, layers: int,
) -> None:  # fmt: skip
    with open_model(paths[name]) as file:
        sizes = {one.name: one.size_bytes for one in file.tensors.values()}
    kept = [f"blk.{layer}.ffn_{part}_exps." for layer in range(layers) for part in PARTS]
    experts = sum(size for one, size in sizes.items() if one.startswith(tuple(kept)))
    with load(paths[name], workers=worker.address, cpu_moe=cpu_moe) as engine:
        reply = engine.generate(PROMPT, **REPLY)
        assert list(reply.token_ids) == expected[name]
        assert reply.stats.peak_memory_bytes <= engine.plan.budget_bytes
        plan, target = engine.plan, engine.scheduler.target
        here, there = target.allocated_bytes(), target.device_bytes()  # type: ignore[attr-defined]
    (part,) = plan.devices
    assert (part.num_layers, part.head, part.without_experts) == (4, True, layers)
    assert experts <= part.experts_bytes <= experts + 1024 * len(sizes)
    # What llama.cpp says that it allocated, in each buffer, against the plan.
    for item, size in here.items():
        assert size <= plan.footprint[item] + ROUNDING
    planned = (part.weights_bytes, part.cache_bytes, part.compute_bytes)
    for size, most in zip(there[part.name].values(), planned, strict=True):
        assert size <= most + ROUNDING
    assert here["weights"] >= experts
    assert there[part.name]["weights"] <= sum(sizes.values()) - experts + ROUNDING
    assert plan.footprint["weights"] - here["weights"] <= 1024 * len(sizes) + ROUNDING
    assert part.weights_bytes - there[part.name]["weights"] <= 1024 * len(sizes) + ROUNDING
    told = f"experts of layers 0 to {layers - 1} stay in this machine's memory"
    assert any(reason.startswith(told) for reason in plan.reasons) == bool(layers)
    assert plan.label.endswith(" without experts") == bool(layers)


@serving
def test_auto_takes_all_layers_without_experts_where_they_do_not_fit_whole(
    paths: dict[str, Path],
    worker: Worker,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of workers whole layers alone, as a way to one costs more than it saves."""
    options: dict[str, Any] = {"workers": worker.address, "vram": 11 * MIB}
    settings: dict[str, Any] = {"backend": "llamacpp", "threads": 1, "context": 256} | options
    whole = edgespec.plan(paths["qwen3moe"], **settings)
    assert [one.without_experts for one in whole.devices] == [0]
    monkeypatch.setattr(placement, "NEAR", ("gpu", "worker"))
    with load(paths["qwen3moe"], **options) as engine:
        (part,) = engine.plan.devices
        assert part.num_layers == 4 and part.head and 0 < part.without_experts < 4
        assert part.total_bytes <= part.budget_bytes
        assert part.read_bytes > whole.devices[0].read_bytes
        assert list(engine.generate(PROMPT, **REPLY).token_ids) == expected["qwen3moe"]
    off = edgespec.plan(paths["qwen3moe"], **settings, cpu_moe="off")
    assert [one.describe() for one in off.devices] == [one.describe() for one in whole.devices]


@serving
def test_passes_and_layers_are_timed_without_experts(
    paths: dict[str, Path], worker: Worker
) -> None:
    """In processes of their own, which are told by the plan."""
    plan = edgespec.plan(
        paths["qwen3moe"], backend="llamacpp", threads=1, context=256, max_nodes=2,
        workers=worker.address, cpu_moe="all",
    )  # fmt: skip
    assert set(pass_seconds(paths["qwen3moe"], plan) or ()) == {1, 2}
    with open_model(paths["qwen3moe"]) as file, LayerTrial(file) as trial:
        found = layer_times(trial.paths(), plan, GIB)
    assert [set(one.whole) for one in found] == [{1, 2}, {1, 2}]


def test_a_pattern_names_the_layers() -> None:
    assert Offload((), ()).experts == ""
    assert Offload((), (), 3).experts == rf"blk\.(0|1|2){EXPERTS}"
    again = Offload.from_json({"devices": [["gpu", "CUDA0"]], "units": [4], "cpu_moe": 2})
    assert again == Offload((("gpu", "CUDA0"),), (4,), 2)


@pytest.mark.parametrize("value", ["some", "5", "-1", "1.5", "", "²"])
def test_wrong_values_are_refused(paths: dict[str, Path], value: str) -> None:
    with pytest.raises(OptionError, match="choose auto, off, all or a number of layers from 1 to"):
        edgespec.plan(paths["qwen3moe"], cpu_moe=value)


def test_what_cannot_be_is_a_sentence(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    dense = write_gguf(tmp_path / "dense.gguf")
    with pytest.raises(OptionError, match="is not a mixture of experts; leave out --cpu-moe"):
        edgespec.plan(dense, cpu_moe="all")
    with pytest.raises(OptionError, match="the native backend puts nothing on devices"):
        edgespec.plan(paths["qwen3moe"], cpu_moe=2, backend="native")
    with pytest.raises(OptionError, match="there is no GPU or worker to hold the rest"):
        edgespec.plan(paths["qwen3moe"], cpu_moe="all")


@serving
def test_a_device_without_room_for_one_layer_is_told(
    paths: dict[str, Path], worker: Worker
) -> None:
    with pytest.raises(edgespec.EdgeSpecError, match="no layer fits on "):
        edgespec.plan(
            paths["qwen3moe"], workers=worker.address, vram=64 * 1024, cpu_moe="all", threads=1
        )
