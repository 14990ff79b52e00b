from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from edgespec.errors import UnsupportedModelError
from edgespec.memory.plan import native_sizes as fp
from edgespec.memory.plan.calibration import LIBRARIES, Runtime
from edgespec.memory.plan.footprint import native_footprint
from edgespec.memory.plan.kv_sizes import kv_bytes
from edgespec.memory.plan.plan import Footprint
from edgespec.memory.plan.settings import Settings
from edgespec.models.spec import TensorType
from tests.support.machines import MIB, model, tensor


def native(**changes: Any) -> Footprint:
    spec, tensors = model()
    arguments: dict[str, Any] = {
        "runtime": Runtime(60 * MIB, 0, frozenset(LIBRARIES), "ready"),
        "drafters": {"drafter ngram": 4 * MIB},
    }
    names = {field.name for field in fields(Settings)}
    chosen = {name: changes.pop(name) for name in names & changes.keys()}
    settings = replace(Settings(1024, 64, 8, 4 * MIB, threads=2), **chosen)
    return native_footprint(spec, tensors, settings, **(arguments | changes))


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        (TensorType.F32, (16, 64), 16 * 64 * 4),
        (TensorType.F16, (17, 64), 32 * 64 * 2),
        (TensorType.BF16, (1, 64), 16 * 64 * 2),
        (TensorType.Q8_0, (32, 64), 32 * 2 * 34),
        (TensorType.Q4_0, (30, 64), 32 * 2 * 18),
        (TensorType.Q4_1, (30, 64), 32 * 2 * 20),
        (TensorType.Q5_0, (30, 64), 32 * 2 * 22),
        (TensorType.Q5_1, (30, 64), 32 * 2 * 24),
        (TensorType.IQ4_NL, (30, 64), 32 * 2 * 18),
        (TensorType.Q4_K, (16, 512), 16 * 2 * 148),
        (TensorType.Q5_K, (16, 512), 16 * 2 * 180),
        (TensorType.Q6_K, (16, 256), 16 * 210),
        (TensorType.Q3_K, (17, 256), 32 * 114),
        (TensorType.Q2_K, (16, 256), 16 * 84),
        (TensorType.IQ4_XS, (16, 512), 16 * 2 * 138),
        (TensorType.MXFP4, (16, 64), 16 * 2 * 17),
        (TensorType.NVFP4, (16, 64), 16 * 36),
        (TensorType.IQ3_XXS, (16, 256), 16 * 138),
        (TensorType.IQ2_XXS, (16, 256), 16 * 106),
        (TensorType.TQ1_0, (16, 256), 16 * 66),
        (TensorType.F32, (300,), 1216),
    ],
)
def test_packed_sizes(kind: TensorType, shape: tuple[int, ...], expected: int) -> None:
    assert fp.packed_bytes(tensor("w", shape, kind)) == expected


def test_a_half_vector_becomes_f32() -> None:
    from edgespec.models.spec import TensorInfo

    assert fp.packed_bytes(TensorInfo("b", (100,), TensorType.F16, 0, 200)) == 448


def test_a_type_that_is_never_packed_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match=r"blk\.0 has type Q8_K.*Q4_0"):
        fp.packed_bytes(tensor("blk.0", (16, 256), TensorType.Q8_K))


def test_formulas_by_hand() -> None:
    spec, _ = model(dim=256, layers=4, heads=4, kv_heads=2, ffn=768, vocab=8000)
    assert kv_bytes(spec, 1) == 4 * 2 * 2 * 64 * 256 * 2 + 64
    assert kv_bytes(spec, 257) == 2 * kv_bytes(spec, 256)
    assert kv_bytes(spec, 0) == 0
    assert kv_bytes(spec, 1, "int8") == 4 * 2 * (64 + 2 * 2 + 64 + 2) * 256 + 64
    assert kv_bytes(spec, 1, "q4") == 4 * 2 * (32 + 2 * 2 + 32 + 2) * 256 + 64
    floats = 256 + 256 + 128 + 128 + 768 + 64
    inputs = sum(4 * width + width + 64 + width // 32 * 28 for width in (256, 256, 768))
    attention = 4 * (2 * 14 * (512 + 256 + 80) + 2 * 48 * (2 * 64 + 3 * 16))
    tables = 4 * (5 * 31 + 30 + 64) + 8 * (5 * 2)
    early = 8 * 256 * 4
    whole_passes = 8 * 10 + 4136
    assert fp.scratch_bytes(spec, 1024, 8, 30, 2) == attention + tables + early + whole_passes
    streams = 32 * (4 * floats + inputs)
    assert fp.activation_bytes(spec, 30) == streams + 2 * 6 * 12 * 4 * 64
    queries = 2 * 6 * 12 * (4 + 2 * (64 + 4))
    assert fp.activation_bytes(spec, 30, "int8") == streams + queries
    assert fp.activation_bytes(spec, 30, "q4") == streams + queries
    assert fp.logits_bytes(spec, 8) == 8 * (8000 + 500) * 4
    assert fp.logits_bytes(spec, 5) == 8 * (8000 + 500) * 4
    assert fp.logits_bytes(spec, 33) == 40 * (8000 + 500) * 4


def test_tied_embeddings_are_held_once() -> None:
    _, tied = model(tied=True)
    _, untied = model(tied=False)
    assert fp.weights_bytes(untied) - fp.weights_bytes(tied) == 8000 * 8 * 18


def test_items_are_named_once_and_sum_up() -> None:
    footprint = native()
    names = [item.name for item in footprint]
    assert len(names) == len(set(names))
    assert footprint.total_bytes == sum(footprint[name] for name in names)
    assert set(footprint.exact) == {
        "weights", "KV cache", "activations", "node scratch", "logits"
    }  # fmt: skip
    parts = {"interpreter", "libraries", "compiled kernels", "tokenizer", "thread stacks"}
    assert parts | {"drafter ngram", "allocator slack"} <= set(names)
    assert "datastore" in [item.name for item in native(datastore_bytes=MIB)]
    with pytest.raises(KeyError):
        footprint["nothing"]


def test_the_total_is_the_largest_of_the_three_peaks() -> None:
    running = native()
    assert running["loading"] == running["start-up"] == 0
    held = Runtime(500 * MIB, 440 * MIB, frozenset(LIBRARIES), "ready")
    startup = native(runtime=held)
    assert startup.total_bytes == 500 * MIB
    assert startup["start-up"] == 500 * MIB - running.total_bytes


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("context", 2048),
        ("max_nodes", 16),
        ("prefill_chunk", 128),
        ("threads", 4),
        ("drafters", {"drafter ngram": 8 * MIB}),
        ("datastore_bytes", MIB),
    ],
)
def test_every_setting_costs(name: str, more: Any) -> None:
    assert native(**{name: more}).total_bytes > native().total_bytes


def test_the_summary_is_one_line_that_adds_up() -> None:
    summary = native().summary()
    assert summary.startswith("interpreter 60.0 MiB, ")
    assert "the rest" in summary
    assert "\n" not in summary


def test_the_packed_sizes_are_those_of_the_native_backend() -> None:
    tile = pytest.importorskip("edgespec.backends.native.kernels.matmul.tile")
    assert set(tile.FORMATS) == set(fp.PACKED)
    for kind, form in tile.FORMATS.items():
        for rows in (1, 16, 100):
            packed = fp.packed_bytes(tensor("w", (rows, 512), kind))
            assert packed == form.matrix_bytes(rows, 512), kind
