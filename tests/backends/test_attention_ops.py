"""The inner loops of attention against NumPy, for all numbers of rows; that all instruction sets
give the same is held elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.kernels.attention import inner_loops, scaled_kv
from edgespec.backends.native.kernels.attention.spans import (
    SCORES_STRIDE,
    WIDTH,
    row_sizes,
    score_sizes,
)
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.codegen.machine_code import compile_function
from edgespec.backends.native.kernels.kv.forms import FORMS
from edgespec.memory.plan.settings import KV_TYPES
from tests.support import attention_arrays as arrays
from tests.support.attending import as_stored, turned
from tests.support.tiles import call

Floats = NDArray[np.float32]
USED = isa.available()[0]
OPERATIONS = isa.operations(USED)
SIZES = {
    kv_type: row_sizes(OPERATIONS.lanes, scaled_kv.DIGITS if kv_type in FORMS else 1)
    for kv_type in KV_TYPES
}
SCALED_TYPES = list(FORMS)
SCORE_SIZES = SIZES | {"f16": score_sizes(OPERATIONS.lanes)}
CASES = [(kv_type, size) for kv_type in KV_TYPES for size in SCORE_SIZES[kv_type]]
OUT = np.float32(-np.inf)


def _call(name: str, *arguments: int | NDArray[Any]) -> None:
    kv_type = next(each for each in KV_TYPES if each in name)
    emit = inner_loops.functions(kv_type, OPERATIONS)[name]
    address = compile_function(*emit(), isa.processor(USED))
    pointers = (each if isinstance(each, int) else each.ctypes.data for each in arguments)
    call(address, *pointers, *[0] * (12 - len(arguments)))


def _normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Floats:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(np.float32)


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


def _softmax(scores: Floats, scales: Floats | None = None) -> tuple[Floats, Floats]:
    """Powers, and maximum, sum and largest product."""
    powers, facts = scores.copy(), np.zeros(3, np.float32)
    name = "softmax_f16" if scales is None else "softmax_int8"
    given = np.zeros(0, np.float32) if scales is None else scales
    _call(name, powers, len(scores) // 16, facts[:1], facts[1:2], given, facts[2:])
    return powers, facts


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES.keys())
def test_softmax(scores: Floats) -> None:
    powers, facts = _softmax(scores.astype(np.float32))
    wide = scores.astype(np.float64)
    exact = np.exp(wide - wide.max())
    np.testing.assert_allclose(powers, exact, rtol=3e-7, atol=1e-37)
    assert facts[0] == scores.max()
    np.testing.assert_allclose(facts[1], exact.sum(), rtol=1e-6)
    assert np.all(powers[np.isneginf(scores)] == 0.0)


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES.keys())
def test_softmax_with_scales(scores: Floats) -> None:
    scales = np.abs(_normal(len(scores), seed=1))
    plain, facts = _softmax(scores.astype(np.float32))
    powers, scaled = _softmax(scores.astype(np.float32), scales)
    np.testing.assert_array_equal(powers, plain * scales)
    np.testing.assert_array_equal(scaled, [*facts[:2], powers.max()])
    turned, scaled = _softmax(scores.astype(np.float32), -scales)
    np.testing.assert_array_equal(turned, -powers)
    assert scaled[2] == powers.max()


def test_softmax_does_not_see_padding() -> None:
    """More padding, the same sums: a context grows without changing what is near."""
    scores = _normal(16)
    short, longer = _softmax(scores), _softmax(np.concatenate([scores, np.full(64, OUT)]))
    np.testing.assert_array_equal(longer[0][:16], short[0])
    np.testing.assert_array_equal(longer[1], short[1])


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("spans", [1, 2, 16, 17])
@pytest.mark.parametrize("head_dim", [8, 20, 64])
def test_combine(kv_type: str, spans: int, head_dim: int) -> None:
    """Shares of spans that may be far apart; nothing is written past a row's last dimension."""
    wide, padded = -(-head_dim // 16) * 16, -(-spans // 16) * 16
    facts = np.full((3, 3, padded), np.nan, np.float32)
    facts[:, 0, :spans] = _normal(3, spans, scale=20.0)
    facts[:, 1:, :spans] = np.abs(_normal(3, 2, spans, seed=1)) + 0.1
    maxima, sums, steps = (facts[:, part, :spans].astype(np.float64) for part in range(3))
    mixed = _normal(3, spans, wide, seed=2)
    results = mixed.astype(np.float64)
    if kv_type != "f16":
        mixed = (mixed * 1e6).astype(np.int32)  # type: ignore[assignment]
        results = mixed * steps[..., None]
    output = np.full((3, head_dim), np.nan, np.float32)
    after = np.full(40, np.float32(7))
    output = np.concatenate([output.ravel(), after])
    strides = (mixed.strides[0], facts.strides[0])
    _call(f"combine_{kv_type}", mixed, strides[0], facts, strides[1], spans, output, head_dim, 3)
    shares = np.exp(maxima - maxima.max(axis=1, keepdims=True))
    total = (shares * sums).sum(axis=1)
    expected = (shares[..., None] * results).sum(axis=1) / total[:, None]
    found = output[: 3 * head_dim].reshape(3, head_dim)
    size = np.abs(results).max() / total.min()
    np.testing.assert_allclose(found, expected[:, :head_dim], rtol=0, atol=1e-6 * size)
    assert np.all(output[3 * head_dim :] == 7)


@pytest.mark.parametrize(("kv_type", "rows"), CASES)
@pytest.mark.parametrize("head_dim", [2, 8, 20, 64, 80, 128])
def test_scores(kv_type: str, rows: int, head_dim: int) -> None:
    queries, keys = arrays.queries(kv_type, head_dim), arrays.keys(kv_type, 4, head_dim)
    output = np.full((rows + 1, WIDTH), np.float32(7))
    steps = -(-head_dim // (2 if kv_type == "f16" else 4))
    tile_bytes, share = keys.data.strides[0], 1
    places = (queries.data, keys.data, tile_bytes, 4, steps, keys.scales, output, keys.data, share)
    _call(f"scores_{kv_type}_{rows}", *places)
    exact = queries.exact[:rows] @ keys.exact.T
    size = np.abs(queries.exact[:rows]) @ np.abs(keys.exact.T)
    assert np.all(np.abs(output[:rows, :64] - exact) <= 1e-6 * size)
    assert np.all(output[rows] == 7)
    assert np.all(output[:, 64:] == 7)


@pytest.mark.parametrize("rows", SIZES["f16"])
@pytest.mark.parametrize(("slots", "width"), [(0, 16), (1, 16), (37, 64), (256, 80)])
def test_mix(rows: int, slots: int, width: int) -> None:
    weights, values = arrays.weights(rows, slots), arrays.values("f16", max(slots, 1), width)
    before = _normal(rows + 1, width + 16, seed=2)
    output = before.copy()
    sizes = (values.data.strides[0], slots)
    places = (output, output.strides[0], width // 16, values.data, 1)
    _call(f"mix_f16_{rows}", weights, values.data, *sizes, *places)
    used = weights[:, :slots].astype(np.float64) @ values.exact[:slots]
    np.testing.assert_allclose(output[:rows, :width], before[:rows, :width] + used, atol=1e-5)
    np.testing.assert_array_equal(output[rows], before[rows])
    np.testing.assert_array_equal(output[:, width:], before[:, width:])


@pytest.mark.parametrize("rows", SIZES["int8"])
@pytest.mark.parametrize(("slots", "width"), [(4, 16), (40, 64), (512, 80)])
@pytest.mark.parametrize("kv_type", SCALED_TYPES)
def test_weigh_and_mix(kv_type: str, rows: int, slots: int, width: int) -> None:
    """Weights become integers that are near them; from there on, all is exact."""
    weights, values = arrays.weights(rows, slots), arrays.values(kv_type, slots, width)
    if kv_type == "q4":
        weights[:, ::3] *= -1  # a scale may be negative
    before, steps = weights.copy(), np.abs(weights).max(axis=1)
    output = np.full((rows + 1, width + 16), 7, np.int32)
    for row in range(rows):
        places = (weights[row], -(-slots // 16), steps[row : row + 1], output[row])
        _call(f"weigh_{kv_type}", *places, width // 16)
    sizes = (values.data.strides[0], slots)
    places = (output, output.strides[0], width // 16, values.data, 0)
    _call(f"mix_{kv_type}_{rows}", weights, values.data, *sizes, *places)
    for row in range(rows):
        integers = arrays.digits(weights[row], slots)
        error = np.abs(integers * steps[row].astype(np.float64) - before[row, :slots])
        assert error.max() <= 1.51 * steps[row]
        assert np.abs(integers).max() <= 127 * 257
        np.testing.assert_array_equal(output[row, :width], integers @ values.exact)
    assert np.all(output[rows] == 7)
    assert np.all(output[:, width:] == 7)


@pytest.mark.parametrize("kv_type", SCALED_TYPES)
def test_weights_of_nothing_are_zero(kv_type: str) -> None:
    weights, step = np.zeros((1, WIDTH), np.float32), np.zeros(1, np.float32)
    mixed = np.full(16, 7, np.int32)
    _call(f"weigh_{kv_type}", weights, 2, step, mixed, 1)
    assert not weights.any() and not mixed.any() and step[0] == 0.0


@pytest.mark.parametrize("head_dim", [2, 20, 64, 80])
@pytest.mark.parametrize("kv_type", SCALED_TYPES)
def test_put_query(kv_type: str, head_dim: int) -> None:
    """Each row's digits and facts, where the others' are not; digits of 16 bits."""
    blocks = -(-head_dim // 32)
    data = np.full(12 * (4 + 68 * blocks), 0x55, np.uint8)
    queries = _normal(12, head_dim, scale=5.0)
    queries[3] = 0.0
    for row in range(12):
        _call(f"put_query_{kv_type}", queries[row], data[4 * row :], head_dim)
    digits = data[: 768 * blocks].view(np.int8).reshape(-1, 2, 12, 4).astype(np.int64)
    integers = (256 * digits[:, 0] + digits[:, 1]).transpose(1, 0, 2).reshape(12, -1)
    steps = data[768 * blocks :][:48].view(np.float32)
    starts = data[768 * blocks + 48 :].view(np.int32).reshape(blocks, 12)
    error = np.abs(integers[:, :head_dim] * steps[:, None].astype(np.float64) - queries)
    assert np.all(error <= 1.51 * steps[:, None])
    sums = integers.reshape(12, blocks, 32).sum(axis=2)
    np.testing.assert_array_equal(starts.T, -arrays.OFFSETS[kv_type] * sums)
    assert not integers[:, head_dim:].any()
    assert digits.min() >= -127


@pytest.mark.parametrize("head_dim", [2, 20, 64, 80])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e4])
def test_stored_numbers(head_dim: int, scale: float) -> None:
    """What is stored is nearest to what was given, in places 64 and 4 bytes apart."""
    number = _normal(head_dim, scale=scale)
    quads, blocks = -(-head_dim // 4), -(-head_dim // 32)
    key, scales = np.zeros((quads, 16, 4), np.uint8), np.zeros((blocks, 16), np.float16)
    _call("store_key_int8", number, key[0, 5], scales[0, 5:], head_dim)
    stored = (key[:, 5].astype(np.int64) - 128).ravel() * np.repeat(scales[:, 5], 32)[: 4 * quads]
    np.testing.assert_array_equal(stored[:head_dim], as_stored("int8", number, keys=True))
    key[:, 5], scales[:, 5] = 0, 0
    assert not key.any() and not scales.any()
    value, factor = np.zeros((-(-head_dim // 16) * 16, 4), np.uint8), np.zeros(2, np.float16)
    _call("store_value_int8", number, value[0, 2:], factor, head_dim)
    stored = (value[:, 2].astype(np.int64) - 128) * factor[0]
    np.testing.assert_array_equal(stored[:head_dim], as_stored("int8", number, keys=False))
    assert not value[:, [0, 1, 3]].any()


@pytest.mark.parametrize("head_dim", [1, 2, 20, 48, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("kv_type", SCALED_TYPES)
def test_turned_heads(kv_type: str, head_dim: int) -> None:
    """Bit for bit what f32 gives, as long as before, and nothing past a head is touched."""
    heads = _normal(3, head_dim, scale=3.0)
    padded = np.concatenate([heads[1], np.full(16, np.float32(7))])
    _call(f"turn_{kv_type}", padded, head_dim)
    np.testing.assert_array_equal(padded[:head_dim], turned(heads)[1])
    assert np.all(padded[head_dim:] == 7)
    once = turned(heads).astype(np.float64)
    np.testing.assert_allclose(once @ once.T, heads.astype(np.float64) @ heads.T, atol=1e-3)
    np.testing.assert_allclose(turned(turned(heads)), heads, atol=1e-5)


@pytest.mark.parametrize("head_dim", [2, 20, 64, 80])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e4, 1e7])
def test_stored_q4(head_dim: int, scale: float) -> None:
    """What is stored, turned already, is nearest to what was given; neighbours stay as they are."""
    number, blocks = _normal(head_dim, scale=scale), -(-head_dim // 32)
    key, scales = np.zeros((blocks, 4, 16, 4), np.uint8), np.zeros((blocks, 16), np.float16)
    _call("store_key_q4", number, key[0, 0, 5:], scales[0, 5:], head_dim)
    halves = np.stack([key[:, :, 5] & 15, key[:, :, 5] >> 4], axis=1).astype(np.int64) - 8
    stored = (halves.reshape(blocks, 32) * scales[:, 5:6].astype(np.float32)).ravel()[:head_dim]
    np.testing.assert_array_equal(stored, as_stored("q4", number, keys=True))
    key[:, :, 5], scales[:, 5] = 0, 0
    assert not key.any() and not scales.any()
    value, factor = np.zeros((blocks, 16, 4), np.uint8), np.zeros(2, np.float16)
    _call("store_value_q4", number, value[0, 0, 2:], factor, head_dim)
    halves = np.stack([value[:, :, 2] & 15, value[:, :, 2] >> 4], axis=1).astype(np.int64) - 8
    stored = (halves.ravel() * np.float32(factor[0]))[:head_dim]
    np.testing.assert_array_equal(stored, as_stored("q4", number, keys=False))
    assert not value[:, :, [0, 1, 3]].any()


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_rows_of_any_size_agree(kv_type: str) -> None:
    """One row's scores and mixture are bit-equal alone and among others."""
    queries, keys = arrays.queries(kv_type, 72), arrays.keys(kv_type, 4, 72)
    values, shares = arrays.values(kv_type, 40, 80), arrays.weights(12, 40)
    steps = -(-72 // (2 if kv_type == "f16" else 4))
    scored = {size: np.zeros((12, WIDTH), np.float32) for size in SCORE_SIZES[kv_type]}
    mixed = {size: np.zeros((12, 80), np.float32) for size in SIZES[kv_type]}
    for size, found in scored.items():
        for first in range(0, 12 // size * size, size):
            block = queries.data.ravel().view(np.uint8)[4 * first :]
            places = (keys.data, keys.data.strides[0], 4, steps, keys.scales, found[first:])
            _call(f"scores_{kv_type}_{size}", block, *places, keys.data, 0)
        done = 12 // size * size
        np.testing.assert_array_equal(found[:done], scored[1][:done])
    for size, found in mixed.items():
        for first in range(0, 12 // size * size, size):
            places = (values.data, values.data.strides[0], 40, found[first:])
            _call(f"mix_{kv_type}_{size}", shares[first:], *places, 320, 5, values.data, 0)
        done = 12 // size * size
        np.testing.assert_array_equal(found[:done].view(np.int32), mixed[1][:done].view(np.int32))
    assert scored[1].strides[0] == SCORES_STRIDE
