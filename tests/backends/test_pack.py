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


@pytest.mark.parametrize("kind", [TensorType.MXFP4, TensorType.NVFP4], ids=name)
def test_every_scale_of_8_bits(kind: TensorType) -> None:
    """Subnormal, not a number and all others are what the gguf package makes of them, up to where
    a power of two times 12 is infinite.
    """
    codes = np.minimum(np.arange(256), 251 if kind is TensorType.MXFP4 else 255)
    raw = raw_rows(kind, 256, 64)
    blocks = raw.reshape(256, -1, kind.block_bytes)
    blocks[..., : 1 if kind is TensorType.MXFP4 else 4] = codes[:, None, None]
    packed, out = Tile.pack(kind, raw, 64), np.zeros((256, 64), np.float32)
    places = (*packed.addresses, *FORMATS[kind].tile_bytes(64))
    unpack_rows(tuple(FORMATS[kind].layout), places, np.arange(256, dtype=np.int32), out)
    np.testing.assert_array_equal(out, dequantised(kind, raw))


GROWN = {
    "Q4_K": 4, "Q5_K": 4, "Q3_K": 4, "IQ4_XS": 2, "TQ1_0": 12, "IQ3_S": 28, "IQ3_XXS": 40,
    "IQ2_S": 32, "IQ2_XS": 40, "IQ2_XXS": 40, "IQ1_M": 58, "IQ1_S": 56,
}  # fmt: skip
"""Bytes that 256 columns take more than in the file."""


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_sizes(kind: TensorType) -> None:
    """A tile holds what its rows held, but for scales of 6 bits, which become bytes, and for what
    is packed in less than whole bits a weight.
    """
    form = FORMATS[kind]
    grown = 2 * TILE_ROWS * GROWN.get(kind.name, 0)
    assert sum(form.tile_bytes(512)) == TILE_ROWS * kind.row_bytes(512) + grown
    assert form.matrix_bytes(17, 512) == 2 * sum(form.tile_bytes(512))
