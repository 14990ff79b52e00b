"""Row operations against float64, at ordinary and at extreme values."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.kernels import row_ops
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.codegen.emit import Function
from edgespec.backends.native.kernels.codegen.machine_code import compile_function
from edgespec.backends.native.kernels.matmul import tile
from tests.support.tiles import call, planes_of

Floats = NDArray[np.float32]


def _call(function: Function, *arguments: int) -> None:
    """Run a row operation as the best instruction set of this machine has it."""
    call(compile_function(*function, isa.processor(isa.available()[0])), *arguments)


def _normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Floats:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(np.float32)


def _rms_norm(values: Floats, gain: Floats, epsilon: float) -> Floats:
    output = np.full(len(values), np.nan, np.float32)
    bits = int(np.float32(epsilon).view(np.int32))
    pointers = (values.ctypes.data, gain.ctypes.data, output.ctypes.data)
    _call(row_ops.rms_norm(), *pointers, len(values) // 16, bits, 0, 0, 0)
    return output


@pytest.mark.parametrize("width", [16, 64, 1040])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e-3, 1e4])
def test_rms_norm(width: int, scale: float) -> None:
    values, gain = _normal(width, scale=scale), _normal(width, seed=1)
    exact = values.astype(np.float64)
    exact = exact / np.sqrt(np.mean(exact**2) + np.float32(1e-5)) * gain
    np.testing.assert_allclose(_rms_norm(values, gain, 1e-5), exact, rtol=2e-6, atol=0)


def test_rms_norm_of_zeros_is_zeros() -> None:
    zeros = np.zeros(32, np.float32)
    np.testing.assert_array_equal(_rms_norm(zeros, zeros + 1, 1e-6), zeros)


def test_rms_norm_in_place() -> None:
    values, gain = _normal(64), _normal(64, seed=1)
    expected = _rms_norm(values, gain, 1e-5)
    place = values.ctypes.data
    bits = int(np.float32(1e-5).view(np.int32))
    _call(row_ops.rms_norm(), place, gain.ctypes.data, place, 4, bits, 0, 0, 0)
    np.testing.assert_array_equal(values, expected)


def _quantise(values: Floats) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    blocks = len(values) // tile.BLOCK
    quants = np.zeros(len(values), np.int8)
    planes = np.zeros((tile.NUM_PLANES, 1, blocks), np.int32)
    pointers = (values.ctypes.data, quants.ctypes.data, planes.ctypes.data)
    _call(row_ops.quantise(), *pointers, planes.strides[0], blocks, 0, 0, 0)
    return quants, planes


QUANTISE = {
    "ordinary": _normal(256),
    "large": _normal(256, scale=1e30),
    "small": _normal(256, scale=1e-30),
    "a block of zeros": np.concatenate([np.zeros(32, np.float32), _normal(32)]),
    "one spike": np.concatenate([np.zeros(31, np.float32), [np.float32(-3)]]),
    "ties": np.concatenate([[127.0], np.arange(-15.5, 15.5)]).astype(np.float32),
    "negative zeros": np.full(32, -0.0, np.float32),
}


@pytest.mark.parametrize("values", QUANTISE.values(), ids=QUANTISE.keys())
def test_quantise(values: Floats) -> None:
    quants, planes = _quantise(values)
    scales = planes[tile.SCALE].view(np.float32)
    largest = np.abs(values).reshape(-1, tile.BLOCK).max(axis=1)
    np.testing.assert_allclose(scales[0], largest / 127.0, rtol=1e-6)
    np.testing.assert_array_equal(planes, planes_of(quants[None], scales))
    assert quants.min() >= -127
    steps = np.repeat(scales[0].astype(np.float64), tile.BLOCK)
    assert np.all(np.abs(quants * steps - values) <= 0.500001 * steps)


def test_quantise_rounds_ties_to_even() -> None:
    quants, _ = _quantise(QUANTISE["ties"])
    np.testing.assert_array_equal(quants, np.round(QUANTISE["ties"]))


def test_quantise_of_almost_nothing_is_almost_nothing() -> None:
    """The scale's inverse overflows; what comes out still weighs next to nothing."""
    quants, planes = _quantise(_normal(64, scale=1e-42))
    scales = planes[tile.SCALE].view(np.float32)[0]
    assert np.all(np.isfinite(planes[tile.SUM].view(np.float32)))
    assert np.all(np.abs(scales) < 1e-40)
    starts = np.abs(planes[tile.START_128 : tile.SUM].astype(np.float64))
    assert np.all(starts * scales < 1e-28)
    assert np.all(np.abs(quants.astype(np.float64)).reshape(2, 32) * scales[:, None] < 1e-28)


GATES = {
    "ordinary": _normal(256, scale=3),
    "around the ends of e**x": np.linspace(-95, 95, 256, dtype=np.float32),
    "far out": np.linspace(-1e4, 1e4, 256, dtype=np.float32),
    "extreme": np.array([-3e38, -1e30, -1e5, -0.0, 0.0, 1e5, 1e30, 3e38] * 4, np.float32),
    "infinite": np.array([np.inf, 1.0] * 8, np.float32),
}


@pytest.mark.parametrize("values", GATES.values(), ids=GATES.keys())
def test_gate(values: Floats) -> None:
    """silu(gate) * up: nothing far below zero, the gate itself far above."""
    up = np.full(len(values), 0.5, np.float32)
    output = np.full(len(values), np.nan, np.float32)
    pointers = (values.ctypes.data, up.ctypes.data, output.ctypes.data)
    _call(row_ops.gate(), *pointers, len(values) // 16, 0, 0, 0, 0)
    wide = values.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = wide / (1.0 + np.exp(-wide)) * 0.5
    np.testing.assert_allclose(output, exact, rtol=1e-6, atol=1e-30)


def _maxima(logits: Floats, num_tiles: int, valid: int) -> Floats:
    output = np.full((len(logits) + 1, num_tiles + 1), np.float32(7))
    source, target = logits.ctypes.data, output.ctypes.data
    places = (logits.strides[0], len(logits), num_tiles, valid, target, output.strides[0], 0)
    _call(row_ops.maxima(), source, *places)
    assert np.all(output[-1] == 7)
    assert np.all(output[:, -1] == 7)
    return output[:-1, :-1]


@pytest.mark.parametrize("num_rows", [0, 1, 3])
@pytest.mark.parametrize("valid", [640, 639, 625, 512, 511, 96, 1])
def test_maxima(num_rows: int, valid: int) -> None:
    """Of what counts: beyond it stand larger logits, and nothing at all."""
    logits = _normal(num_rows, 640)
    logits[:, valid:] = 99
    logits[:, :16] = -np.inf
    found = _maxima(logits, 40, valid)
    logits[:, valid:] = -np.inf
    np.testing.assert_array_equal(found, logits.reshape(num_rows, 40, 16).max(axis=2))


def test_maxima_are_found_wherever_they_are() -> None:
    logits = np.zeros((256, 256), np.float32)
    np.fill_diagonal(logits, 1)
    found = _maxima(logits, 16, 256)
    np.testing.assert_array_equal(found, np.repeat(np.eye(16), 16, axis=0))


@pytest.mark.parametrize("place", [16, 23, 31, 272])
@pytest.mark.parametrize("bad", [np.nan, -np.nan], ids=["nan", "negative nan"])
def test_maxima_show_what_is_not_a_number(place: int, bad: float) -> None:
    logits = _normal(1, 320)
    logits[0, place - 1], logits[0, place] = np.inf, bad
    expected = logits.reshape(1, 20, 16).max(axis=2)
    assert np.isnan(expected).sum() == 1
    np.testing.assert_array_equal(_maxima(logits, 20, 320), expected)
    assert not np.any(np.isnan(_maxima(logits, 20, place)))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("pairs", [1, 4])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotate(interleaved: bool, pairs: int, after: int, in_place: bool) -> None:
    """Pairs are complex numbers turned by an angle; the values after them are only scaled."""
    half = 16 * pairs
    values, angles = _normal(2 * half + 16 * after), _normal(half, scale=3.0, seed=1)
    cosines, sines = np.cos(angles), np.sin(angles)
    turned = values.astype(np.float64) * 0.125
    real, imaginary = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    if not interleaved:
        real, imaginary = slice(0, half), slice(half, 2 * half)
    product = (turned[real] + 1j * turned[imaginary]) * (cosines + 1j * sines)
    turned[real], turned[imaginary] = product.real, product.imag
    output = values if in_place else np.full_like(values, np.nan)
    pointers = (values.ctypes.data, cosines.ctypes.data, sines.ctypes.data, output.ctypes.data)
    bits = int(np.float32(0.125).view(np.int32))
    _call(row_ops.rotate(interleaved), *pointers, pairs, after, bits, 0)
    np.testing.assert_allclose(output, turned, rtol=1e-5, atol=1e-6)
