"""Weights that are read from disk while passes need them give the bits of those in memory."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.streaming.direct_file import DirectFile
from edgespec.backends.native.streaming.disk_speed import disk_bytes_per_s
from edgespec.backends.passes import TokenTree
from edgespec.control.cost_curve import CostCurve
from edgespec.control.curve_cache import remember_streamed, streamed_seconds
from edgespec.errors import BudgetError, ModelFileError
from edgespec.loading.tell_streaming import with_disk_speed
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.planner import make_plan
from edgespec.memory.plan.sizing import Sizing
from edgespec.memory.plan.streaming import PAGE, STREAM_ITEM, StreamableWeights, Streaming
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from tests.support import random_models
from tests.support.facts import facts_in
from tests.support.machines import LAPTOP, READY, cores

MODELS = ("llama", "qwen3moe", "qwen35", "gpt-oss")
PROMPT = np.arange(40, dtype=np.int32) % 50
PREDICTED = re.compile(r"about ([\d.]+) tokens/s")
TREE = TokenTree(np.array([5, 7, 9, 2], np.int32), np.array([-1, 0, 0, 1], np.int16))


def written(name: str, folder: Path) -> Path:
    return random_models.write(random_models.MODELS[name](), folder / "model.gguf", type="Q8_0")


def sizing_of(file: ModelFile, streaming: Streaming | None = None) -> Sizing:
    return Sizing(file.spec, tuple(file.tensors.values()), READY, streaming=streaming)


def plan_of(file: ModelFile, streaming: Streaming | None) -> Plan:
    return make_plan(sizing_of(file, streaming), Budget.parse("1GiB", LAPTOP), cores(2))


def passes(target: Any) -> list[NDArray[np.float32]]:
    """Logits of a few steps after a prompt: with and without accepted drafts."""
    found = []
    target.own.prefill(PROMPT)
    for step in range(4):
        found.append(np.array(target.own.forward(TREE).logits))
        target.own.expect(()) if step % 2 else target.own.commit([0, 1, 3])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_bits(name: str, tmp_path: Path) -> None:
    native = pytest.importorskip("edgespec.backends.native.target")
    with open_model(written(name, tmp_path)) as file:
        weights = StreamableWeights(file.spec, tuple(file.tensors.values()))
        least = weights.least()
        assert least is not None
        some = weights.within(least.on_disk_bytes // 3)
        results = []
        for streaming in (None, least, some):
            plan = plan_of(file, streaming)
            with native.NativeTarget(file, plan) as target:
                results.append(passes(target))
                held = target.allocated_bytes()
                for item in ("weights", STREAM_ITEM):
                    assert held.get(item) == plan.footprint.exact.get(item)
                assert (target.bytes_read > 0) == (streaming is not None)
    for streamed in results[1:]:
        for one, other in zip(results[0], streamed, strict=True):
            np.testing.assert_array_equal(one, other)


def test_measuring_decides_nothing_about_experts(tmp_path: Path) -> None:
    """Those of made-up tokens would stay in memory for as long as a reply's come and go."""
    native = pytest.importorskip("edgespec.backends.native.target")
    with open_model(written("qwen3moe", tmp_path)) as file:
        streaming = StreamableWeights(file.spec, tuple(file.tensors.values())).least()
        with native.NativeTarget(file, plan_of(file, streaming)) as target:
            curve = CostCurve({1: 1.0, 4: 1.2}, 4)
            curve.price_experts(target)
            assert target.bytes_read
            assert not target._streamed.experts.used.any()


def test_damaged_disk(tmp_path: Path) -> None:
    """A file that shrinks while passes read it is an error, and nobody waits for ever."""
    native = pytest.importorskip("edgespec.backends.native.target")
    path = written("llama", tmp_path)
    with open_model(path) as file:
        streaming = StreamableWeights(file.spec, tuple(file.tensors.values())).least()
        with native.NativeTarget(file, plan_of(file, streaming)) as target:
            target.own.prefill(PROMPT)
            os.truncate(path, path.stat().st_size // 2)
            with pytest.raises(ModelFileError, match="was it changed"):
                for _ in range(20):  # what lies in the ring already is good
                    target.own.forward(TREE)
                    target.own.expect(())


@pytest.mark.parametrize("offset, size", [(0, 100), (5000, 9000), (PAGE, PAGE), (30_000, 1234)])
@pytest.mark.parametrize("is_direct", [True, False])
def test_direct_file(offset: int, size: int, is_direct: bool, tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 31_234, np.uint8)
    data.tofile(tmp_path / "file")
    room = np.zeros(5 * PAGE, np.uint8)
    room = room[-room.ctypes.data % PAGE :][: 4 * PAGE]
    file = DirectFile(tmp_path / "file")
    if not is_direct:
        file._give_up_direct()
    np.testing.assert_array_equal(file.read(offset, size, room), data[offset : offset + size])
    with pytest.raises(ModelFileError, match="ended at byte 31234"):
        file.read(31_000, 1000, room)
    file.close()


def test_disk_speed(tmp_path: Path) -> None:
    np.zeros(5_000_000, np.uint8).tofile(tmp_path / "file")
    assert disk_bytes_per_s(tmp_path / "file") > 1e6


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_more_memory_holds_more(name: str, tmp_path: Path) -> None:
    with open_model(written(name, tmp_path)) as file:
        weights = StreamableWeights(file.spec, tuple(file.tensors.values()))
        least = weights.least()
        assert least is not None
        found = [weights.within(least.on_disk_bytes * part // 8) for part in range(9)]
        read = [each.read_bytes for each in found if each is not None]
        assert read == sorted(read, reverse=True)
        assert len(read) == 9 and read[0] == least.read_bytes and read[-1] < read[0]


def test_plan_keeps_every_budget(tmp_path: Path) -> None:
    """From what the whole model takes down, a plan that streams fits, or there is none."""
    with open_model(written("qwen3moe", tmp_path)) as file:
        whole = make_plan(sizing_of(file), Budget.parse("1GiB", LAPTOP), cores(2), context=256)
        streamed = 0
        for budget in range(whole.planned_bytes, whole.planned_bytes // 2, -(256 << 10)):
            size, sizing = Budget.parse(budget, LAPTOP), sizing_of(file)
            try:
                plan = make_plan(sizing, size, cores(2), context=256, max_nodes=4, stream=True)
            except BudgetError:
                break
            assert plan.planned_bytes <= budget
            streamed += plan.streaming is not None
        assert streamed > 3


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_a_plan_tells_what_replies_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.control.curve_cache.fact_path", facts_in(tmp_path / "cache"))
    with open_model(written(name, tmp_path)) as file:
        weights = StreamableWeights(file.spec, tuple(file.tensors.values()))
        plan = plan_of(file, weights.least())
        assert "GB/s, as measured" in with_disk_speed(plan, file).reasons[-1]
        remember_streamed(file.path, plan, 0.25)
        told = with_disk_speed(plan, file).reasons[-1]
        assert "as in earlier replies: about 4 tokens/s" in told
        one_more = plan_of(file, weights.within(weights.least().on_disk_bytes // 2))
        assert float(PREDICTED.search(with_disk_speed(one_more, file).reasons[-1])[1]) > 4
        remember_streamed(file.path, one_more, 0.125)
        assert "about 8 tokens/s" in with_disk_speed(one_more, file).reasons[-1]
        assert "about 4 tokens/s" in with_disk_speed(plan, file).reasons[-1]


def test_damaged_memories_of_replies_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.control.curve_cache.fact_path", facts_in(tmp_path / "cache"))
    with open_model(written("llama", tmp_path)) as file:
        weights = StreamableWeights(file.spec, tuple(file.tensors.values()))
        plan = plan_of(file, weights.least())
        remember_streamed(file.path, plan, 0.25)
        (place,) = (tmp_path / "cache" / "streamed").iterdir()
        for text in (
            "[]",
            '{"1": 0}',
            '{"-1": 1}',
            '{"1": "x"}',
            '{"1e9": 1}',
            "{",
            '{"1": 1e999}',
        ):
            place.write_text(text, encoding="utf-8")
            assert streamed_seconds(file.path, plan) == {}
        for number in range(40):
            streaming = replace(plan.streaming, read_bytes=number)
            remember_streamed(file.path, replace(plan, streaming=streaming), 1.0 + number)
        assert len(streamed_seconds(file.path, plan)) <= 16
