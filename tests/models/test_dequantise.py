from __future__ import annotations

import numpy as np
import pytest

from edgespec.errors import UnsupportedModelError
from edgespec.models.gguf.dequantise import SUPPORTED_TYPES, dequantise
from edgespec.models.spec import TensorType
from tests.support.tiles import dequantised, name, raw_rows


@pytest.mark.parametrize("columns", [256, 768])
@pytest.mark.parametrize("kind", SUPPORTED_TYPES, ids=name)
def test_equals_the_reference_bit_for_bit(kind: TensorType, columns: int) -> None:
    raw = raw_rows(kind, 5, columns, seed=columns)
    values = dequantise(raw, kind)
    assert values.dtype == np.float32
    assert np.array_equal(values.view(np.uint32), dequantised(kind, raw).view(np.uint32))


def test_no_rows_are_no_values() -> None:
    assert dequantise(np.empty((0, 34), np.uint8), TensorType.Q8_0).shape == (0, 32)


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"cannot dequantise Q8_K; supported are F32.*"):
        dequantise(np.empty((1, 292), np.uint8), TensorType.Q8_K)
