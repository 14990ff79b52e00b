from __future__ import annotations

from typing import Any

import pytest

from edgespec.errors import UnsupportedModelError
from edgespec.memory import footprint as fp
from edgespec.memory.plan import Footprint
from edgespec.models.spec import TensorType
from tests.memory.machines import MIB, model, tensor


def native(**changes: Any) -> Footprint:
    spec, tensors = model()
    arguments: dict[str, Any] = {
        "context_length": 1024,
        "max_nodes": 8,
        "prefill_chunk": 64,
        "threads": 2,
        "drafter_bytes": 4 * MIB,
        "base_bytes": 60 * MIB,
        "kernel_bytes": 20 * MIB,
    }
    return fp.native_footprint(spec, tensors, **(arguments | changes))


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        (TensorType.F32, (16, 64), 16 * 64 * 4),
        (TensorType.F16, (17, 64), 32 * 64 * 2),
        (TensorType.BF16, (1, 64), 16 * 64 * 2),
        (TensorType.Q8_0, (32, 64), 32 * 2 * 34),
        (TensorType.Q4_0, (30, 64), 32 * 2 * 18),
        (TensorType.Q4_K, (16, 512), 16 * 2 * 148),
        (TensorType.Q6_K, (16, 256), 16 * 210),
        (TensorType.F32, (300,), 1200),
    ],
)
def test_packed_sizes(kind: TensorType, shape: tuple[int, ...], expected: int) -> None:
    assert fp.packed_bytes(tensor("w", shape, kind)) == expected


def test_a_half_vector_becomes_f32() -> None:
    from edgespec.models.spec import TensorInfo

    assert fp.packed_bytes(TensorInfo("b", (100,), TensorType.F16, 0, 200)) == 400


def test_a_type_that_is_never_packed_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match=r"blk\.0 has type Q5_K.*Q4_0"):
        fp.packed_bytes(tensor("blk.0", (16, 256), TensorType.Q5_K))


def test_formulas_by_hand() -> None:
    spec, _ = model(dim=256, layers=4, heads=4, kv_heads=2, ffn=768, vocab=8000)
    assert fp.kv_bytes(spec, 1) == 4 * 2 * 2 * 64 * 256 * 2
    assert fp.kv_bytes(spec, 257) == 2 * fp.kv_bytes(spec, 256)
    assert fp.kv_bytes(spec, 0) == 0
    assert fp.node_kv_bytes(spec, 8) == 8 * 4 * 2 * 128 * 2
    assert fp.activation_bytes(spec, 32) == 32 * 4 * (6 * 256 + 3 * 768 + 256 + 2 * 128)
    assert fp.logits_bytes(spec, 8) == 8 * 8000 * 4


def test_tied_embeddings_are_held_once() -> None:
    _, tied = model(tied=True)
    _, untied = model(tied=False)
    assert fp.weights_bytes(untied) - fp.weights_bytes(tied) == 8000 * 8 * 18


def test_items_are_named_once_and_sum_up() -> None:
    footprint = native()
    names = [item.name for item in footprint]
    assert len(names) == len(set(names))
    assert footprint.total_bytes == sum(footprint[name] for name in names)
    assert set(footprint.exact) == {"weights", "KV cache", "node KV", "activations", "logits"}
    with pytest.raises(KeyError):
        footprint["nothing"]


def test_the_total_is_the_largest_of_the_three_peaks() -> None:
    running = native()
    assert running["loading"] == running["start-up"] == 0
    startup = native(startup_peak_bytes=500 * MIB)
    assert startup.total_bytes == 500 * MIB
    assert startup["start-up"] == 500 * MIB - running.total_bytes
    spec, tensors = model(vocab=400_000, kind=TensorType.F32)
    loading = fp.native_footprint(
        spec,
        tensors,
        context_length=256,
        max_nodes=1,
        prefill_chunk=32,
        threads=1,
        drafter_bytes=0,
        base_bytes=60 * MIB,
    )
    steady = ("interpreter", "compiled kernels", "tokenizer", "weights")
    assert loading["loading"] > 0
    assert loading.total_bytes == sum(loading[name] for name in steady) + 400_000 * 256 * 4


@pytest.mark.parametrize(
    ("lever", "more"),
    [
        ("context_length", 2048),
        ("max_nodes", 16),
        ("prefill_chunk", 128),
        ("threads", 4),
        ("drafter_bytes", 8 * MIB),
    ],
)
def test_every_lever_costs(lever: str, more: int) -> None:
    assert native(**{lever: more}).total_bytes > native().total_bytes


def test_the_summary_is_one_line_that_adds_up() -> None:
    summary = native().summary()
    assert summary.startswith("interpreter 60.0 MiB, ")
    assert "the rest" in summary
    assert "\n" not in summary


def test_the_packed_sizes_are_those_of_the_native_backend() -> None:
    tile = pytest.importorskip("edgespec.backends.native.kernels.tile")
    assert set(tile.FORMATS) == set(fp.PACKED)
    for kind, form in tile.FORMATS.items():
        for rows in (1, 16, 100):
            packed = fp.packed_bytes(tensor("w", (rows, 512), kind))
            assert packed == form.matrix_bytes(rows, 512), kind
