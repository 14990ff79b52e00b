"""A draft model on a device, while the model it drafts for stays with the processor."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.backends.llamacpp.ggml import GgmlDevice
from edgespec.backends.llamacpp.remote import devices
from edgespec.backends.measure_passes import pass_seconds
from edgespec.errors import BackendError, OptionError
from edgespec.loading.draft_model import DraftModel
from edgespec.system.size import GIB, MIB
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.llamacpp_workers import (
    Worker,
    addresses,
    load,
    serving,
    workers,
    write_eight_layers,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eight_layers(tmp_path_factory)


@serving
def test_a_small_device_drafts_and_the_processor_verifies(model: Path, tmp_path: Path) -> None:
    """Dovetail's way: the model does not fit the device, the draft model does, and is read more."""
    small = write_gguf(
        tmp_path / "small.gguf",
        dim=256, ffn=1024, layers=2, type="F16", template=CHATML, context=2048,
    )  # fmt: skip
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    drafting: dict[str, Any] = {"draft_model": small, "drafters": "none"}
    drafting["draft_backend"] = "llamacpp"
    with load(model) as plain:
        expected = plain.generate("the cat", speculation=False, **options)
    with workers(10 * MIB) as made:
        for backend in ("llamacpp", "native"):
            with load(model, backend=backend, workers=addresses(made), **drafting) as engine:
                (part,) = engine.plan.draft_devices
                assert not engine.plan.devices and part.name == made[0].address
                assert part.head and part.num_layers == 2 and part.total_bytes <= part.budget_bytes
                assert "draft model on worker" in engine.plan.explain()
                assert engine.plan.as_dict()["draft_devices"][0]["num_layers"] == 2
                for _ in range(2):
                    reply = engine.generate("the cat", max_nodes=4, **options)
                    assert backend != "llamacpp" or reply.token_ids == expected.token_ids
                plain_reply = engine.generate("the cat", speculation=False, **options)
                assert reply.token_ids == plain_reply.token_ids
        with load(model, workers=addresses(made), overlap="on", **drafting) as engine:
            reply = engine.generate("the cat", max_nodes=4, **options)
            assert reply.token_ids == expected.token_ids
            assert "written ahead" in reply.stats.overlap
        less = edgespec.plan(
            model, backend="llamacpp", context=256, threads=1, workers=addresses(made),
            vram=4_800_000, **drafting,
        )  # fmt: skip
        assert less.devices and not less.draft_devices  # not all of it fits
        with pytest.raises(OptionError, match="cannot share the threads"):
            edgespec.plan(model, overlap="on", **drafting)
    with workers(28 * MIB) as made:
        whole = edgespec.plan(
            model, backend="llamacpp", context=256, threads=1, workers=addresses(made), **drafting
        )
        assert whole.devices[0].units == 9 and not whole.draft_devices
    assert made[0].peak_bytes <= made[0].memory_bytes


@serving
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_a_lost_drafter_costs_speed_alone(
    model: Path, overlap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model drafts, so that drafts are right and asked for again and again."""
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_nodes": 4}
    drafting = {"draft_model": model, "draft_backend": "llamacpp", "drafters": "none"}
    monkeypatch.setattr(DraftModel, "device", lambda self, devices, main: devices[0])
    with (
        workers(24 * MIB) as made,
        load(model, workers=addresses(made), overlap=overlap, **drafting) as engine,
    ):
        assert engine.plan.draft_devices
        expected = engine.generate("the cat", max_tokens=300, speculation=False, **options)
        stream = engine.stream("the cat", max_tokens=300, **options)
        next(stream)
        made[0].kill()
        begin = time.perf_counter()
        list(stream)
        assert stream.reply.token_ids == expected.token_ids
        notes = stream.reply.stats.notes
        # The thread's loss is told when drafts are asked for, which may not be again.
        assert len(notes) == 1 or (overlap == "on" and not notes)
        assert all(note.startswith("drafts ended: the worker at") for note in notes)
        again = engine.generate("the cat", max_tokens=30, **options)
        assert again.token_ids == expected.token_ids[:30]
        assert time.perf_counter() - begin < 10
        with Worker(made[0].memory_bytes, made[0].port):
            back = engine.generate("the cat", max_tokens=300, **options)
            assert back.token_ids == expected.token_ids and back.stats.notes == ()


@serving
def test_passes_are_measured_where_the_layers_are(model: Path) -> None:
    with workers(28 * MIB) as (worker,):
        held = worker.peak_bytes
        plan = edgespec.plan(model, context=256, threads=1, workers=worker.address)
        assert plan.devices[0].units == 9
        found = pass_seconds(model, plan)
        assert found is not None and found[1] > 0
        assert worker.peak_bytes > held + 14 * MIB


@serving
@pytest.mark.parametrize("backend", ["auto", "llamacpp"])
def test_a_gpu_that_cannot_be_used_is_told_of_and_left_alone(
    model: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    gpu = GgmlDevice("CUDA7", "not there", "gpu", 6 * GIB, 8 * GIB)
    monkeypatch.setattr(devices, "gpus", lambda: (gpu,))
    monkeypatch.setattr(sys, "platform", "linux")
    plan = edgespec.plan(model, context=256, threads=1, backend=backend)
    told = [*plan.reasons, *(one.verdict for one in plan.candidates)]
    assert any("finds no gpu CUDA7" in reason for reason in told)
    assert not plan.devices
    with pytest.raises(BackendError, match="finds no gpu CUDA7"):
        edgespec.plan(model, context=256, threads=1, backend=backend, vram="4GiB")
