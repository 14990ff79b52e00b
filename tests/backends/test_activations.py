"""Activations against float64, at ordinary and at extreme values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from edgespec.backends.native.kernels.codegen import isa
from tests.support.tiles import call

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]


def _address(name: str) -> int:
    return isa.activation_address(isa.available()[0], name)


def _of_two(name: str, left: Floats, right: Floats) -> Floats:
    output = np.full(len(left), np.nan, np.float32)
    pointers = (left.ctypes.data, right.ctypes.data, output.ctypes.data)
    call(_address(name), *pointers, len(left) // 16, 0, 0, 0, 0)
    return output


def _of_one(name: str, values: Floats, cap: float = 1.0) -> Floats:
    output = np.full(len(values), np.nan, np.float32)
    bits = int(np.float32(cap).view(np.int32))
    places = (values.ctypes.data, output.ctypes.data, len(values) // 16, bits)
    call(_address(name), *places, 0, 0, 0, 0)
    return output


def _sigmoid(values: Wide) -> Wide:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-values))


def _gelu(gate: Wide, up: Wide) -> Wide:
    """The sigmoid of twice the tangent's argument: 1 + tanh(z) would round away below zero."""
    with np.errstate(over="ignore"):
        return gate * _sigmoid(2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)) * up


def _swiglu_oai(gate: Wide, up: Wide) -> Wide:
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return gate * _sigmoid(1.702 * gate) * (up + 1)


PAIRS: dict[str, Callable[[Wide, Wide], Wide]] = {
    "silu": lambda gate, up: gate * _sigmoid(gate) * up,
    "gelu": _gelu,
    "swiglu_oai": _swiglu_oai,
    "sigmoid_gate": lambda values, gate: values * _sigmoid(gate),
}
VALUES = {
    "ordinary": np.random.default_rng(0).standard_normal(256).astype(np.float32) * 3,
    "around the ends of e**x": np.linspace(-95, 95, 256, dtype=np.float32),
    "around the clamp": np.linspace(-8, 8, 256, dtype=np.float32),
    "far out": np.linspace(-1e4, 1e4, 256, dtype=np.float32),
    "tiny": np.linspace(-1e-6, 1e-6, 64, dtype=np.float32),
    "extreme": np.array([-3e38, -1e30, -1e5, -0.0, 0.0, 1e5, 1e30, 3e38] * 4, np.float32),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("name", PAIRS)
def test_gates(name: str, values: Floats) -> None:
    other = np.resize(np.array([0.5, -3.0, 6.9, 7.5, -8.25], np.float32), len(values))
    for left, right in ((values, other), (other, values)):
        exact = PAIRS[name](left.astype(np.float64), right.astype(np.float64))
        with np.errstate(over="ignore"):
            exact = exact.astype(np.float32)
        np.testing.assert_allclose(_of_two(name, left, right), exact, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("cap", [1.0, 30.0, 50.0])
def test_tanh_and_softcap(values: Floats, cap: float) -> None:
    wide = values.astype(np.float64)
    np.testing.assert_allclose(_of_one("tanh", values), np.tanh(wide), rtol=4e-7)
    exact = cap * np.tanh(wide / cap)
    np.testing.assert_allclose(_of_one("softcap", values, cap), exact, rtol=6e-7)


@given(arrays(np.float32, 16, elements=st.floats(-2, 2, width=32)))
def test_tanh_where_its_two_forms_meet(values: Floats) -> None:
    exact = np.tanh(values.astype(np.float64))
    np.testing.assert_allclose(_of_one("tanh", values), exact, rtol=4e-7, atol=1e-38)


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_not_a_number_is_not_hidden(name: str) -> None:
    values, ones = np.full(16, np.nan, np.float32), np.ones(16, np.float32)
    assert np.isnan(_of_two(name, values, ones)).all()
    assert np.isnan(_of_two(name, ones, values)).all()


@pytest.mark.parametrize("name", ["tanh", "softcap"])
def test_of_infinities_and_what_is_not_a_number(name: str) -> None:
    values = np.resize(np.array([np.inf, -np.inf, np.nan], np.float32), 48)
    cap = 30.0 if name == "softcap" else 1.0
    np.testing.assert_array_equal(_of_one(name, values, cap), np.clip(values, -cap, cap))


@pytest.mark.parametrize("name", PAIRS)
def test_in_place(name: str) -> None:
    left, right = (np.random.default_rng(i).standard_normal(32).astype(np.float32) for i in (1, 2))
    expected = _of_two(name, left, right)
    pointers = (left.ctypes.data, right.ctypes.data, left.ctypes.data)
    call(_address(name), *pointers, 2, 0, 0, 0, 0)
    np.testing.assert_array_equal(left, expected)
