"""Sweeps over states and what goes into them against float64; that all instruction sets give the
same is held elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.codegen.machine_code import compile_function
from edgespec.backends.native.kernels.recurrent import inputs, state
from edgespec.backends.native.kernels.row_ops import NUM_ARGUMENTS
from edgespec.memory.plan.state_layout import CONVOLUTIONS, STEP_WORDS
from tests.support import recurrent_naive as naive
from tests.support.state_steps import Step
from tests.support.tiles import call

Floats = NDArray[np.float32]
USED = isa.available()[0]
SWEEPS = state.functions(isa.operations(USED).lanes)
SHAPES = [(16, 16), (32, 48), (128, 128), (128, 64), (48, 144)]


def _call(name: str, *arguments: int | NDArray[Any]) -> None:
    emit = SWEEPS[name] if name in SWEEPS else inputs.FUNCTIONS[name]
    address = compile_function(*emit(), isa.processor(USED))
    pointers = [each if isinstance(each, int) else each.ctypes.data for each in arguments]
    call(address, *pointers, *[0] * (NUM_ARGUMENTS - len(pointers)))


def _normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Floats:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(np.float32)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def _sweep(
    name: str, before: Floats, target: Floats, steps: list[Step], read: Step | None = None
) -> None:
    words = np.array([each.words for each in steps], np.int64).reshape(-1, STEP_WORDS)
    last = np.array(read.words if read else [], np.int64)
    rows, columns = before.shape
    _call(name, before, target, rows, columns // 16, words, len(steps), last)


def _advance(net: str, before: Floats, steps: list[Step]) -> Floats:
    """Every step read, then applied, in sweeps of its own."""
    now = before.copy()
    for step in steps:
        _sweep(f"{net}_read", now, now, [], step)
        _sweep(f"{net}_update", now, now, [step])
    return now


@pytest.mark.parametrize("net", ["delta", "mamba"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps(net: str, shape: tuple[int, int]) -> None:
    """A chain of steps is what the recurrence says, outputs and state."""
    steps = [Step.random(*shape, seed=seed) for seed in range(20)]
    before = _normal(*shape, scale=0.3, seed=99)
    found = _advance(net, before, steps)
    exact = before.astype(np.float64)
    for step in steps:
        wide = step.wide()
        if net == "delta":
            exact, output = naive.delta_step(exact, *wide)
        else:
            exact, output = naive.mamba_step(exact, *wide, float(step.skip[0]))
        np.testing.assert_allclose(step.output, output, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5)


def test_without_skip() -> None:
    step, before = Step.random(16, 32, seed=3), _normal(16, 32)
    _sweep("mamba_read", before, before, [], step)
    with_skip = step.output.copy()
    step.words[state.SKIP] = 0
    _sweep("mamba_read", before, before, [], step)
    skipped = step.output + step.skip * step.value
    np.testing.assert_allclose(skipped, with_skip, rtol=1e-5, atol=1e-5)
    assert np.any(step.output != with_skip)


@settings(max_examples=60, deadline=None)
@given(
    net=st.sampled_from(["delta", "mamba"]),
    shape=st.sampled_from(SHAPES),
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    in_place=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_sweeps_give_the_same_bits(
    net: str, shape: tuple[int, int], cuts: list[int], in_place: bool, seed: int
) -> None:
    """Steps applied together, apart, while the next is read, in place or to somewhere else."""
    steps = [Step.random(*shape, seed=seed % 1000 + i) for i in range(sum(cuts) + 1)]
    before = _normal(*shape, seed=seed)
    expected = _advance(net, before, steps)
    wanted = [(step.delta.copy(), step.output.copy()) for step in steps]
    now, first = before.copy(), 0
    for size in cuts:
        group, after = steps[first : first + size], steps[first + size]
        after.delta[:], after.output[:] = np.nan, np.nan
        target = now if in_place else np.full_like(now, np.nan)
        _sweep(f"{net}_advance", now, target, group, after)
        now, first = target, first + size
        np.testing.assert_array_equal(after.delta, wanted[first][0])
        np.testing.assert_array_equal(after.output, wanted[first][1])
    _sweep(f"{net}_update", now, now, steps[-1:])
    np.testing.assert_array_equal(now, expected)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("width", CONVOLUTIONS)
def test_convolve(width: int, silu: bool, biased: bool) -> None:
    """All positions of a chain, some channels of each row."""
    channels, first, count = 96, 32, 48
    values, taps = _normal(10, channels), _normal(channels, width, seed=1)
    bias = _normal(channels, seed=2) if biased else np.zeros(channels, np.float32)
    exact = naive.convolve(*(each.astype(np.float64) for each in (values, taps, bias)))
    exact = naive.silu(exact) if silu else exact
    turned = np.ascontiguousarray(taps.T)
    padded = np.concatenate([np.zeros((width - 1, channels), np.float32), values])
    output = np.full(count, np.nan, np.float32)
    for position in range(len(values)):
        rows = np.array([padded[position + i].ctypes.data for i in range(width)], np.int64)
        place, stride = turned.ctypes.data + 4 * first, turned.strides[0]
        more = bias[first:].ctypes.data if biased else 0
        name = f"convolve_{width}{'_silu' if silu else ''}"
        _call(name, rows, 4 * first, place, stride, more, output, count // 16)
        wanted = exact[position, first : first + count]
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e-3, 1e4])
@pytest.mark.parametrize("width", [16, 128])
def test_l2_norm(width: int, scale: float) -> None:
    values, output = _normal(width, scale=scale), np.full(width, np.nan, np.float32)
    _call("l2_norm", values, output, width // 16, _bits(1e-6), _bits(0.25))
    wide = values.astype(np.float64)
    exact = wide / np.sqrt(np.sum(wide**2) + np.float32(1e-6)) * 0.25
    np.testing.assert_allclose(output, exact, rtol=2e-6, atol=0)


EXTREMES = np.array(
    [-3e38, -1e30, -1e4, -100, -88, -87, -20, -1, -1e-9, -0.0, 0, 1e-9, 1, 20, 88, 1e30], np.float32
)


@pytest.mark.parametrize(
    "values", [_normal(64, scale=5), np.linspace(-95, 95, 256, dtype=np.float32), EXTREMES]
)
def test_time_steps(values: Floats) -> None:
    """The step is softplus, and what decays is never more than it was."""
    bias, rate = _normal(len(values), seed=1), -np.abs(_normal(len(values), seed=2))
    decays, steps = np.full((2, len(values)), np.nan, np.float32)
    _call("time_steps", values, bias, rate, decays, steps, len(values) // 16)
    exact = naive.softplus((values + bias).astype(np.float64))
    np.testing.assert_allclose(steps, exact, rtol=1e-6, atol=1e-37)
    powers = np.exp(steps.astype(np.float64) * rate)
    np.testing.assert_allclose(decays, powers, rtol=2e-5, atol=1e-37)
    assert decays.max() <= 1


def test_rates_that_grow_stay_numbers() -> None:
    """What no trained model has, and a damaged file may."""
    values, rate = np.full((2, 16), 1e4, np.float32)
    decays, steps = np.zeros((2, 16), np.float32)
    _call("time_steps", values, np.zeros(16, np.float32), rate, decays, steps, 1)
    assert np.all(np.isfinite(decays))


@pytest.mark.parametrize("values", [_normal(64, scale=5), EXTREMES])
def test_sigmoid(values: Floats) -> None:
    output = np.full_like(values, np.nan)
    _call("sigmoid", values, output, len(values) // 16)
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-values.astype(np.float64)))
    np.testing.assert_allclose(output, exact, rtol=1e-6, atol=1e-37)


def test_multiply() -> None:
    left, right = _normal(32), _normal(32, seed=1)
    output = np.zeros(32, np.float32)
    _call("multiply", left, right, output, 2)
    np.testing.assert_array_equal(output, left * right)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["norm_then_gate", "gate_then_norm"])
def test_gated_norm(name: str, in_place: bool) -> None:
    values, gain, gate = (_normal(96, scale=3, seed=seed) for seed in range(3))
    wide, opened = values.astype(np.float64), naive.silu(gate.astype(np.float64))
    if name == "gate_then_norm":
        wide = wide * opened
    exact = wide / np.sqrt(np.mean(wide**2) + np.float32(1e-6)) * gain
    if name == "norm_then_gate":
        exact = exact * opened
    output = values if in_place else np.full_like(values, np.nan)
    _call(name, values, gain, gate, output, 6, _bits(1e-6))
    np.testing.assert_allclose(output, exact, rtol=1e-5, atol=1e-6)
