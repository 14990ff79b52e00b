"""Every tile function: all types x numbers of tokens x instruction sets of this machine."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.matmul import tile
from edgespec.models.spec import TensorType
from tests.support.tiles import (
    KINDS,
    Activations,
    Tile,
    dequantised,
    name,
    planes_of,
    raw_rows,
    set_halves,
)

ISAS = isa.available()
CASES = [(kind, size) for kind in KINDS for size in tile.FORMATS[kind].sizes]
QUANTISED = [kind for kind in KINDS if not tile.FORMATS[kind].is_float]
COLUMNS = 768


def _columns(kind: TensorType) -> int:
    return COLUMNS + 2 if tile.FORMATS[kind].is_float else COLUMNS


@pytest.mark.parametrize("used", ISAS)
@pytest.mark.parametrize(("kind", "size"), CASES, ids=name)
def test_against_exact_arithmetic(used: str, kind: TensorType, size: int) -> None:
    """Within a few roundings of float64, and nothing is written beside the results."""
    columns = _columns(kind)
    raw = raw_rows(kind, 16, columns)
    weights = dequantised(kind, raw).astype(np.float64)
    activations = Activations.random(size, columns)
    output = np.full((size + 1, 20), np.float32(7))
    activations.run(
        isa.tile_address(used, kind, size), Tile.pack(kind, raw, columns), output=output
    )
    values = activations.values.astype(np.float64)
    allowed = 1e-6 * (np.abs(values) @ np.abs(weights).T) + 1e-30
    assert np.all(np.abs(output[:size, :16] - values @ weights.T) <= allowed)
    assert np.all(output[size] == 7)
    assert np.all(output[:, 16:] == 7)


@pytest.mark.parametrize("used", ISAS)
@pytest.mark.parametrize(("kind", "size"), CASES, ids=name)
def test_bit_equal_to_the_plain_loop(used: str, kind: TensorType, size: int) -> None:
    """Whatever the instruction set and the number of tokens."""
    columns = _columns(kind)
    packed = Tile.pack(kind, raw_rows(kind, 16, columns, seed=5), columns)
    activations = Activations.random(size, columns, seed=6)
    ours, plain = np.zeros((2, size, 16), np.float32)
    activations.run(isa.tile_address(used, kind, size), packed, output=ours)
    activations.run(isa.tile_address(isa.PLAIN, kind, 1), packed, output=plain)
    np.testing.assert_array_equal(ours.view(np.uint32), plain.view(np.uint32))


@pytest.mark.parametrize("used", ISAS)
@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_a_token_does_not_see_the_others(used: str, kind: TensorType) -> None:
    columns = _columns(kind)
    packed = Tile.pack(kind, raw_rows(kind, 16, columns), columns)
    many = Activations.random(max(tile.INTEGER_SIZES), columns)
    for size in tile.FORMATS[kind].sizes:
        output = np.zeros((size, 16), np.float32)
        some = Activations(many.values[:size], many.quants[:size], many.planes[:, :size])
        some.run(isa.tile_address(used, kind, size), packed, output=output)
        for token in range(size):
            alone = np.zeros((1, 16), np.float32)
            one = slice(token, token + 1)
            Activations(many.values[one], many.quants[one], many.planes[:, one]).run(
                isa.tile_address(used, kind, 1), packed, output=alone
            )
            np.testing.assert_array_equal(output[one].view(np.uint32), alone.view(np.uint32))


@pytest.mark.parametrize("used", ISAS)
@pytest.mark.parametrize("kind", QUANTISED, ids=name)
def test_the_last_size_computes_what_it_is_told(used: str, kind: TensorType) -> None:
    last, packed = tile.INTEGER_SIZES[-1], Tile.pack(kind, raw_rows(kind, 16, COLUMNS), COLUMNS)
    for count in (9, 13, 33):
        activations = Activations.random(count, COLUMNS)
        ours, plain = np.full((2, count + 1, 16), np.float32(7))
        for isa_name, output in ((used, ours), (isa.PLAIN, plain)):
            activations.run(isa.tile_address(isa_name, kind, last), packed, output=output[:count])
        np.testing.assert_array_equal(ours.view(np.uint32), plain.view(np.uint32))
        assert np.all(ours[count] == 7)


@pytest.mark.parametrize("used", ISAS)
@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_accumulates_on_top(used: str, kind: TensorType) -> None:
    columns, address = _columns(kind), isa.tile_address(used, kind, 2)
    packed = Tile.pack(kind, raw_rows(kind, 16, columns), columns)
    activations = Activations.random(2, columns)
    product = np.zeros((2, 16), np.float32)
    stream = np.random.default_rng(9).standard_normal((2, 16), dtype=np.float32)
    expected = stream.copy()
    activations.run(address, packed, output=product)
    activations.run(address, packed, output=stream, accumulate=True)
    np.testing.assert_array_equal(stream, expected + product)


@pytest.mark.parametrize("used", ISAS)
@pytest.mark.parametrize("kind", QUANTISED, ids=name)
def test_largest_integers_do_not_saturate(used: str, kind: TensorType) -> None:
    """All weights' bits set and all activations 127 or -127, over many blocks."""
    columns = 2048
    raw = np.full((16, kind.row_bytes(columns)), 0xFF, np.uint8)
    set_halves(kind, raw, 1.0)
    quants = np.full((2, columns), 127, np.int8)
    quants[1] = -127
    scales = np.ones((2, columns // tile.BLOCK), np.float32)
    activations = Activations(quants.astype(np.float32), quants, planes_of(quants, scales))
    output = np.zeros((2, 16), np.float32)
    activations.run(isa.tile_address(used, kind, 2), Tile.pack(kind, raw, columns), output=output)
    exact = quants.astype(np.float64) @ dequantised(kind, raw).astype(np.float64).T
    np.testing.assert_allclose(output, exact, rtol=1e-5)


@pytest.mark.parametrize("used", ISAS)
@pytest.mark.parametrize("kind", [TensorType.MXFP4, TensorType.NVFP4], ids=name)
def test_every_scale_of_8_bits(used: str, kind: TensorType) -> None:
    """Each in a row of its own, 16 at a time, subnormal ones too, up to where sums are infinite."""
    codes = np.minimum(np.arange(256), 240 if kind is TensorType.MXFP4 else 255)
    ones = np.ones((1, 64), np.int8)
    activations = Activations(
        ones.astype(np.float32), ones, planes_of(ones, np.ones((1, 2), np.float32))
    )
    raw = raw_rows(kind, 256, 64)
    places = slice(0, 1) if kind is TensorType.MXFP4 else slice(0, 4)
    raw.reshape(256, -1, kind.block_bytes)[..., places] = codes[:, None, None]
    for first in range(0, 256, 16):
        rows = raw[first : first + 16]
        output = np.zeros((1, 16), np.float32)
        activations.run(isa.tile_address(used, kind, 1), Tile.pack(kind, rows, 64), output=output)
        exact = dequantised(kind, rows).astype(np.float64).sum(axis=1)
        np.testing.assert_allclose(output[0], exact, rtol=1e-6)
