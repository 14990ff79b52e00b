"""Packing moves bits and changes none: what is read back is what the gguf package reads."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.backends.native.kernels.matmul.tile import FORMATS, TILE_ROWS
from edgespec.backends.native.kernels.matmul.unpack import unpack_rows
from edgespec.models.spec import TensorType
from tests.support.tiles import KINDS, Tile, dequantised, name, raw_rows


def _columns(kind: TensorType) -> tuple[int, ...]:
    return (2, 34) if FORMATS[kind].is_float else (kind.block_size, 3 * kind.block_size)


CASES = [(kind, columns) for kind in KINDS for columns in _columns(kind)]


@pytest.mark.parametrize(("kind", "columns"), CASES, ids=name)
@pytest.mark.parametrize("num_rows", [16, 5, 40])
def test_unpacked_rows_are_the_files(kind: TensorType, columns: int, num_rows: int) -> None:
    """In any order, and those that only fill the last tile too."""
    raw = raw_rows(kind, num_rows, columns)
    packed = Tile.pack(kind, raw, columns)
    in_all = -(-num_rows // TILE_ROWS) * TILE_ROWS
    expected = np.zeros((in_all, columns), np.float32)
    expected[:num_rows] = dequantised(kind, raw)
    rows = np.random.default_rng(0).integers(0, in_all, 3 * in_all).astype(np.int32)
    out = np.full((len(rows) + 1, columns), np.nan, np.float32)
    sizes = FORMATS[kind].tile_bytes(columns)
    unpack_rows(tuple(FORMATS[kind].layout), (*packed.addresses, *sizes), rows, out)
    np.testing.assert_array_equal(out[:-1], expected[rows])
    assert np.isnan(out[-1]).all()


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_sizes(kind: TensorType) -> None:
    """A tile holds what its rows held, but for scales of 6 bits, which become bytes."""
    form = FORMATS[kind]
    grown = 512 // 256 * TILE_ROWS * 4 if kind in (TensorType.Q4_K, TensorType.Q5_K) else 0
    assert sum(form.tile_bytes(512)) == TILE_ROWS * kind.row_bytes(512) + grown
    assert form.matrix_bytes(17, 512) == 2 * sum(form.tile_bytes(512))
