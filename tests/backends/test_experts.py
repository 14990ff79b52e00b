"""Mixtures of experts against loops in f64, and bit for bit whatever else is in the pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from edgespec.backends.native.kernels.moe.routing import choose
from edgespec.models.layers import Moe
from edgespec.models.spec import TensorType
from edgespec.system.jit import kernel
from tests.support.expert_layers import DIM, Floats, Layer, RandomWeights, mixture, naive
from tests.support.tiles import name

# fmt: off
LAYERS: dict[str, Moe] = {
    "softmax": mixture(),
    "renormalised, one unit": mixture(renormalise=True, scale=2.5, width=64),
    "sigmoid, biased choice": mixture(scoring="sigmoid", choice=True, renormalise=True),
    "groups": mixture(16, 3, groups=4, active_groups=2, scoring="sigmoid", choice=True),
    "groups of one": mixture(8, 2, groups=8, active_groups=3),
    "softmax of the chosen, biases": mixture(
        scoring="softmax_of_chosen", biased=True, activation="swiglu_oai"),
    "weighed inputs": mixture(8, 1, scoring="sigmoid", weigh_input=True, shared=32),
    "a shared expert": mixture(shared=160, biased=True),
    "with a gate": mixture(17, 2, shared=96, gated=True),
    "scaled experts": mixture(activation="gelu", expert_scale="expert_scale", biased=True),
    "all experts": mixture(5, 5),
    "one expert": mixture(1, 1, shared=32),
}
KINDS = (TensorType.F32, TensorType.F16, TensorType.Q8_0, TensorType.Q4_0)
# fmt: on


def _inputs(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)


def _cosine(ours: Any, exact: Any) -> float:
    return float(np.sum(ours * exact) / np.sqrt(np.sum(ours**2) * np.sum(exact**2)))


@pytest.mark.parametrize("kind", KINDS, ids=name)
@pytest.mark.parametrize("own", LAYERS.values(), ids=LAYERS.keys())
def test_against_loops(own: Moe, kind: TensorType) -> None:
    """Activations are int8 where weights are quantised."""
    weights, inputs = RandomWeights(kind), _inputs(3 if config.DISABLE_JIT else 20)
    found = Layer(own, weights, len(inputs)).run(inputs)
    exact = np.array([naive(own, weights, row) for row in inputs])
    if kind in (TensorType.F32, TensorType.F16):
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
    else:
        assert _cosine(found, exact) > 0.9995


def test_output() -> None:
    """It is replaced, or added to, by so many times the result."""
    own, inputs = LAYERS["a shared expert"], _inputs(5)
    layer = Layer(own, RandomWeights(TensorType.F32), len(inputs))
    plain = layer.run(inputs)
    scaled = layer.run(inputs, factor=0.25)
    np.testing.assert_array_equal(scaled, plain * np.float32(0.25))
    layer.output[:] = 1000
    layer.run(inputs, factor=-2.0, accumulate=True)
    np.testing.assert_allclose(layer.output[:5], 1000 - 2 * plain, rtol=1e-6)


def test_experts_that_were_read_are_counted() -> None:
    own, inputs = mixture(16, 2), _inputs(4)
    layer = Layer(own, RandomWeights(TensorType.F32), len(inputs))
    layer.run(inputs[:1])
    assert layer.experts.read.tolist() == [0, 2, 0]
    layer.run(inputs)
    logits = inputs @ layer.weights.values(own.router)[0].T
    chosen = np.argsort(-logits, axis=1)[:, :2]
    assert layer.experts.read.tolist() == [0, len(np.unique(chosen)), 0]


@settings(max_examples=60)
@given(
    st.sampled_from(list(LAYERS)),
    st.sampled_from([TensorType.F16, TensorType.Q4_0]),
    st.lists(st.integers(0, 30), min_size=1, max_size=30),
    st.integers(1, 4),
    st.sampled_from([1, -1]),
)
def test_a_row_is_the_same_in_any_company(
    layer: str, kind: TensorType, rows: list[int], threads: int, order: int
) -> None:
    """Bit for bit: alone, among any others, and with any number of threads."""
    inputs, weights = _inputs(31), RandomWeights(kind)
    single = Layer(LAYERS[layer], weights, 1)
    together = Layer(LAYERS[layer], weights, len(rows), threads)
    found = together.run(inputs[rows], order=order)
    for row, own in {row: place for place, row in enumerate(rows)}.items():
        np.testing.assert_array_equal(single.run(inputs[row : row + 1])[0], found[own])


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="takes minutes")
@pytest.mark.parametrize("kind", [TensorType.F16, TensorType.Q8_0], ids=name)
def test_many_rows_of_one_expert(kind: TensorType) -> None:
    """More than any tile function takes at once, and alike."""
    own, weights = mixture(4, 2, shared=64), RandomWeights(kind)
    inputs = _inputs(130)
    whole, single = Layer(own, weights, len(inputs), 2), Layer(own, weights, 1)
    found = whole.run(inputs)
    for row in range(0, 130, 7):
        np.testing.assert_array_equal(single.run(inputs[row : row + 1])[0], found[row])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layer", ["softmax", "groups", "softmax of the chosen, biases"])
def test_what_is_not_a_number_stays_in_its_row(layer: str, bad: float) -> None:
    """And no expert is chosen that there is not, whatever a row holds."""
    inputs, own = _inputs(3), Layer(LAYERS[layer], RandomWeights(TensorType.F32), 3)
    expected = own.run(inputs)
    inputs[1, 5] = bad
    found = own.run(inputs)
    np.testing.assert_array_equal(found[[0, 2]], expected[[0, 2]])
    assert not np.isfinite(found[1]).all()


@kernel
def _choose(scores, count, wanted, chosen):  # type: ignore[no-untyped-def]
    choose(scores, count, wanted, chosen)


@given(st.data())
def test_choose(data: st.DataObject) -> None:
    """The largest in order, of equal ones the first; always places, whatever is compared."""
    values = st.sampled_from([0.5, -1.0, 0.0, -0.0, 2.0, np.inf, -np.inf, 1e-40])
    scores = np.array(data.draw(st.lists(values, min_size=1, max_size=512)), np.float32)
    wanted = data.draw(st.integers(1, min(len(scores), 16)))
    chosen = np.full(wanted + 1, -7)
    _choose(scores.ctypes.data, len(scores), wanted, chosen.ctypes.data)
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    assert chosen.tolist() == [*expected[:wanted], -7]
    scores[data.draw(st.integers(0, len(scores) - 1))] = np.nan
    _choose(scores.ctypes.data, len(scores), wanted, chosen.ctypes.data)
    places = set(chosen[:wanted].tolist())
    assert len(places) == wanted
    assert places <= set(range(len(scores)))


def test_equal_scores_go_to_the_lower_expert() -> None:
    own, weights = mixture(20, 4), RandomWeights(TensorType.F32)
    weights.values(own.router)
    layer = Layer(own, weights, 1)
    layer.run(np.zeros((1, DIM), np.float32))
    assert layer.experts.scratch.slots[0, :4].tolist() == [0, 1, 2, 3]
