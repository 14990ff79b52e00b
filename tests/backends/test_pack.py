"""Packing moves bits and changes none: what is read back is what the gguf package reads."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.backends.native.kernels.pack import UNPACK
from edgespec.backends.native.kernels.tile import FORMATS, TILE_ROWS
from edgespec.models.dequantise import dequantise
from edgespec.models.spec import TensorType
from tests.backends.tiles import KINDS, Tile, dequantised, name, raw_rows


def _columns(kind: TensorType) -> tuple[int, ...]:
    return (2, 34) if FORMATS[kind].is_float else (kind.block_size, 3 * kind.block_size)


CASES = [(kind, columns) for kind in KINDS for columns in _columns(kind)]


@pytest.mark.parametrize(("kind", "columns"), CASES, ids=name)
@pytest.mark.parametrize("num_rows", [16, 5])
def test_unpacked_rows_are_the_files(kind: TensorType, columns: int, num_rows: int) -> None:
    raw = raw_rows(kind, num_rows, columns)
    packed = Tile.pack(kind, raw, columns)
    expected = np.zeros((TILE_ROWS, columns), np.float32)
    expected[:num_rows] = dequantised(kind, raw)
    out = np.full(columns, np.nan, np.float32)
    for row in range(TILE_ROWS):
        UNPACK[kind](packed.weights, packed.scales, row, columns, out)
        if row < num_rows or kind is not TensorType.Q8_0:  # its zero bits are weights of -128 x 0
            np.testing.assert_array_equal(out, expected[row])
        else:
            np.testing.assert_array_equal(np.abs(out), 0)


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_dequantised_as_the_gguf_package_does(kind: TensorType) -> None:
    raw = raw_rows(kind, 7, 512, seed=3)
    np.testing.assert_array_equal(
        dequantise(raw, kind).view(np.uint32), dequantised(kind, raw).view(np.uint32)
    )


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_sizes(kind: TensorType) -> None:
    """A tile holds what its rows held, but for Q4_K's scales, unpacked from 6 bits to bytes."""
    weights, scales = FORMATS[kind].tile_bytes(512)
    grown = 512 // 256 * TILE_ROWS * 4 if kind is TensorType.Q4_K else 0
    assert weights + scales == TILE_ROWS * kind.row_bytes(512) + grown
    assert FORMATS[kind].matrix_bytes(17, 512) == 2 * (weights + scales)
