from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from edgespec.errors import UnsupportedModelError
from edgespec.models.dequantise import SUPPORTED_TYPES, dequantise
from edgespec.models.spec import TensorType


def random_rows(kind: TensorType, columns: int, seed: int) -> np.ndarray:
    """Random bytes, every scale replaced by a finite number."""
    rng = np.random.default_rng(seed)
    if kind in (TensorType.F32, TensorType.F16, TensorType.BF16):
        values = rng.standard_normal((5, columns)).astype(np.float32)
        raw = quants.quantize(values, GGMLQuantizationType[kind.name])
        return np.ascontiguousarray(raw).view(np.uint8).reshape(5, -1)
    raw = rng.integers(0, 256, (5, kind.row_bytes(columns)), dtype=np.uint8)
    blocks = raw.reshape(-1, kind.block_bytes)
    places = {"Q4_K": (0, 2), "Q6_K": (208,)}.get(kind.name, (0,))
    for place in places:
        scales = rng.standard_normal(len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scales[:, None].view(np.uint8)
    return raw


@pytest.mark.parametrize("columns", [256, 768])
@pytest.mark.parametrize("kind", SUPPORTED_TYPES, ids=lambda kind: kind.name)
def test_equals_the_reference_bit_for_bit(kind: TensorType, columns: int) -> None:
    raw = random_rows(kind, columns, seed=columns)
    expected = quants.dequantize(raw, GGMLQuantizationType[kind.name]).astype(np.float32)
    values = dequantise(raw, kind)
    assert values.dtype == np.float32
    assert np.array_equal(values.view(np.uint32), expected.reshape(5, columns).view(np.uint32))


def test_no_rows_are_no_values() -> None:
    assert dequantise(np.empty((0, 34), np.uint8), TensorType.Q8_0).shape == (0, 32)


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"cannot dequantise Q5_K; supported are F32.*"):
        dequantise(np.empty((1, 176), np.uint8), TensorType.Q5_K)
