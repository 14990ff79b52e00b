"""Row operations against float64, at ordinary and at extreme values."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.kernels import isa, row_ops, tile
from edgespec.backends.native.kernels.emit import Function
from edgespec.backends.native.kernels.machine_code import compile_function
from tests.backends.tiles import call, planes_of

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


def _softmax(scores: Floats) -> tuple[Floats, float]:
    powers, inverse = scores.copy(), np.zeros(1, np.float32)
    _call(row_ops.softmax(), powers.ctypes.data, len(scores) // 16, inverse.ctypes.data, *[0] * 5)
    return powers, float(inverse[0])


OUT = np.float32(-np.inf)
SCORES = {
    "ordinary": _normal(64),
    "far apart": _normal(64, scale=1e4),
    "all equal": np.full(48, -7.5, np.float32),
    "padded": np.concatenate([_normal(17), np.full(15, OUT)]),
    "one of them": np.concatenate([np.full(5, OUT), [np.float32(3)], np.full(10, OUT)]),
    "a vector left out": np.concatenate([np.full(16, OUT), _normal(16)]),
    "huge": np.linspace(3e38, -3e38, 32, dtype=np.float32),
    "around the end of e**x": np.linspace(-100, 0, 112, dtype=np.float32),
}


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES.keys())
def test_softmax(scores: Floats) -> None:
    powers, inverse = _softmax(scores.astype(np.float32))
    wide = scores.astype(np.float64)
    exact = np.exp(wide - wide.max())
    np.testing.assert_allclose(powers, exact, rtol=1e-5, atol=1e-37)
    np.testing.assert_allclose(inverse, 1.0 / exact.sum(), rtol=1e-6)
    assert np.all(powers[np.isneginf(scores)] == 0.0)


def test_softmax_does_not_see_padding() -> None:
    """More padding, the same sums: a context grows without changing what is near."""
    scores = _normal(16)
    short, longer = _softmax(scores), _softmax(np.concatenate([scores, np.full(64, OUT)]))
    np.testing.assert_array_equal(longer[0][:16], short[0])
    assert longer[1] == short[1]


@pytest.mark.parametrize("num_rows", row_ops.ROW_SIZES)
@pytest.mark.parametrize("head_dim", [8, 64, 100])
def test_scores(num_rows: int, head_dim: int) -> None:
    queries = _normal(num_rows, 112)
    keys = _normal(head_dim, 16, seed=1).astype(np.float16)
    output = np.full((num_rows + 1, 24), np.float32(7))
    _call(
        row_ops.scores(num_rows),
        queries.ctypes.data,
        queries.strides[0],
        keys.ctypes.data,
        head_dim,
        output.ctypes.data,
        output.strides[0],
        0,
        0,
    )
    exact = queries[:, :head_dim].astype(np.float64) @ keys.astype(np.float64)
    np.testing.assert_allclose(output[:num_rows, :16], exact, rtol=1e-5, atol=1e-5)
    assert np.all(output[num_rows] == 7)
    assert np.all(output[:, 16:] == 7)


@pytest.mark.parametrize("num_rows", row_ops.ROW_SIZES)
@pytest.mark.parametrize(("num_keys", "width"), [(0, 16), (1, 16), (37, 64), (256, 32)])
def test_mix(num_rows: int, num_keys: int, width: int) -> None:
    weights = np.abs(_normal(num_rows, 256))
    values = _normal(256, width, seed=1).astype(np.float16)
    before = _normal(num_rows + 1, width + 16, seed=2)
    output = before.copy()
    _call(
        row_ops.mix(num_rows),
        weights.ctypes.data,
        weights.strides[0],
        values.ctypes.data,
        values.strides[0],
        num_keys,
        output.ctypes.data,
        output.strides[0],
        width // 16,
    )
    used = weights[:, :num_keys].astype(np.float64) @ values[:num_keys].astype(np.float64)
    np.testing.assert_allclose(
        output[:num_rows, :width], before[:num_rows, :width] + used, rtol=1e-4, atol=1e-4
    )
    np.testing.assert_array_equal(output[num_rows], before[num_rows])
    np.testing.assert_array_equal(output[:, width:], before[:, width:])


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


def test_rows_of_any_size_agree() -> None:
    """One row's scores and mixture are bit-equal alone and among eight."""
    queries, keys = _normal(8, 64), _normal(64, 16, seed=1).astype(np.float16)
    shares, values = np.abs(_normal(8, 40)), _normal(40, 64, seed=2).astype(np.float16)
    scored, mixed = {}, {}
    for size in row_ops.ROW_SIZES:
        scored[size] = np.zeros((8, 16), np.float32)
        mixed[size] = np.zeros((8, 64), np.float32)
        for first in range(0, 8, size):
            one, two = queries[first:], scored[size][first:]
            places = (one.ctypes.data, 256, keys.ctypes.data, 64, two.ctypes.data, 64, 0, 0)
            _call(row_ops.scores(size), *places)
            one, two = shares[first:], mixed[size][first:]
            places = (one.ctypes.data, 160, values.ctypes.data, 128, 40, two.ctypes.data, 256, 4)
            _call(row_ops.mix(size), *places)
        np.testing.assert_array_equal(scored[size], scored[8])
        np.testing.assert_array_equal(mixed[size], mixed[8])


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
