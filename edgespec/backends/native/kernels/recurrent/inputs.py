"""What goes into a state, and what comes out of a layer that has one, emitted as LLVM text.

As the row operations are (`kernels/row_ops.py`): vectors of 16 lanes, one order of operations,
eight 64-bit integers each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import (
    F32,
    I32,
    I64,
    LANES,
    V16F32,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.codegen.vectors import (
    exp,
    floats,
    one_plus_exp,
    sizes,
    sum_lanes,
)
from edgespec.backends.native.kernels.row_ops import start
from edgespec.memory.plan.state_layout import CONVOLUTIONS


def convolve(width: int, silu: bool) -> Function:
    """(rows, offset, taps, tap stride, bias, output, vectors): a causal convolution of channels.

    `rows` are the addresses of `width` rows of inputs, the oldest first and the position's own
    last; channels start `offset` bytes into each. Taps are f32 [width, channels], of these
    channels; a bias of address 0 is none. With `silu`, that of the sum is put out.
    """
    emitter = start(f"convolve_{width}{'_silu' if silu else ''}")
    builder = emitter.builder
    rows, offset, taps, stride, bias, target, count = emitter.arguments[:7]
    inputs = [
        emitter.address(emitter.load(emitter.address(rows, 8 * i), I64, 8), offset)
        for i in range(width)
    ]
    biased = builder.icmp_signed("!=", bias, emitter.integer(0))
    (total,) = emitter.running(1)
    with emitter.loop(count) as index:
        place = builder.mul(index, emitter.integer(64))
        builder.store(emitter.zero(), total)
        with builder.if_then(biased):
            builder.store(emitter.load(emitter.address(bias, place), V16F32, 4), total)
        summed = builder.load(total)
        for i, source in enumerate(inputs):
            tap = emitter.load(emitter.address(taps, place, (stride, i)), V16F32, 4)
            value = emitter.load(emitter.address(source, place), V16F32, 4)
            summed = emitter.fma(value, tap, summed)
        if silu:
            summed = _silu(emitter, summed)
        emitter.store(summed, emitter.address(target, place))
    return emitter.done()


def l2_norm() -> Function:
    """(input, output, vectors, epsilon bits, scale bits): output = input / root(sum of squares +
    epsilon) * scale.
    """
    emitter = start("l2_norm")
    builder = emitter.builder
    source, target, count, epsilon, scale = emitter.arguments[:5]
    (total,) = emitter.running(1)
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        builder.store(emitter.fma(value, value, builder.load(total)), total)
    squares = sum_lanes(emitter, builder.load(total))
    root = _root(emitter, builder.fadd(squares, _float(emitter, epsilon)))
    factor = emitter.splat(builder.fdiv(_float(emitter, scale), root))
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        emitter.store(builder.fmul(value, factor), emitter.address(target, (index, 64)))
    return emitter.done()


def time_steps() -> Function:
    """(input, bias, rate, decays, steps, vectors): of each head, step = softplus(input + bias) and
    decay = e**(step * rate).
    """
    emitter = start("time_steps")
    builder = emitter.builder
    source, bias, rate, decays, steps, count = emitter.arguments[:6]
    with emitter.loop(count) as index:
        value, more, slope = (
            emitter.load(emitter.address(base, (index, 64)), V16F32, 4)
            for base in (source, bias, rate)
        )
        step = _softplus(emitter, builder.fadd(value, more))
        decay = exp(emitter, _at_most(emitter, builder.fmul(step, slope), 88.0))
        emitter.store(decay, emitter.address(decays, (index, 64)))
        emitter.store(step, emitter.address(steps, (index, 64)))
    return emitter.done()


def sigmoid() -> Function:
    """(input, output, vectors)."""
    emitter = start("sigmoid")
    builder = emitter.builder
    source, target, count = emitter.arguments[:3]
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        share = builder.fdiv(floats(1.0), one_plus_exp(emitter, builder.fneg(value)))
        emitter.store(share, emitter.address(target, (index, 64)))
    return emitter.done()


def multiply() -> Function:
    """(left, right, output, vectors): output = left * right."""
    emitter = start("multiply")
    builder = emitter.builder
    left, right, target, count = emitter.arguments[:4]
    with emitter.loop(count) as index:
        value, factor = (
            emitter.load(emitter.address(base, (index, 64)), V16F32, 4) for base in (left, right)
        )
        emitter.store(builder.fmul(value, factor), emitter.address(target, (index, 64)))
    return emitter.done()


def gated_norm(gate_first: bool) -> Function:
    """(input, weight, gate, output, vectors, epsilon bits): root mean square norm of a group.

    The norm's result is multiplied by silu(gate); with `gate_first` the input is, before the norm.
    """
    emitter = start("gate_then_norm" if gate_first else "norm_then_gate")
    builder = emitter.builder
    source, weight, gate, target, count, epsilon = emitter.arguments[:6]
    (total,) = emitter.running(1)
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        if gate_first:
            opened = emitter.load(emitter.address(gate, (index, 64)), V16F32, 4)
            value = builder.fmul(value, _silu(emitter, opened))
            emitter.store(value, emitter.address(target, (index, 64)))
        builder.store(emitter.fma(value, value, builder.load(total)), total)
    length = builder.sitofp(builder.mul(count, emitter.integer(LANES)), F32)
    mean = builder.fdiv(sum_lanes(emitter, builder.load(total)), length)
    root = _root(emitter, builder.fadd(mean, _float(emitter, epsilon)))
    factor = emitter.splat(builder.fdiv(ir.Constant(F32, 1.0), root))
    with emitter.loop(count) as index:
        place = emitter.address(target, (index, 64))
        start_at = place if gate_first else emitter.address(source, (index, 64))
        value = builder.fmul(emitter.load(start_at, V16F32, 4), factor)
        gain = emitter.load(emitter.address(weight, (index, 64)), V16F32, 4)
        value = builder.fmul(value, gain)
        if not gate_first:
            opened = emitter.load(emitter.address(gate, (index, 64)), V16F32, 4)
            value = builder.fmul(value, _silu(emitter, opened))
        emitter.store(value, place)
    return emitter.done()


FUNCTIONS: dict[str, Callable[[], Function]] = {
    "l2_norm": l2_norm,
    "time_steps": time_steps,
    "sigmoid": sigmoid,
    "multiply": multiply,
    "norm_then_gate": partial(gated_norm, False),
    "gate_then_norm": partial(gated_norm, True),
    **{f"convolve_{width}": partial(convolve, width, False) for width in CONVOLUTIONS},
    **{f"convolve_{width}_silu": partial(convolve, width, True) for width in CONVOLUTIONS},
}


def _float(emitter: Emitter, bits: Value) -> Value:
    builder = emitter.builder
    return builder.bitcast(builder.trunc(bits, I32), F32)


def _root(emitter: Emitter, value: Value) -> Value:
    return emitter.call("llvm.sqrt.f32", F32, [value])


def _at_most(emitter: Emitter, values: Value, most: float) -> Value:
    builder = emitter.builder
    beyond = builder.fcmp_ordered(">", values, floats(most))
    return builder.select(beyond, floats(most), values)


def _silu(emitter: Emitter, values: Value) -> Value:
    return emitter.builder.fdiv(values, one_plus_exp(emitter, emitter.builder.fneg(values)))


_TERMS = 8
"""Of the inverse hyperbolic tangent's series: the next is below 2**-24 of the sum."""


def _softplus(emitter: Emitter, values: Value) -> Value:
    """log(1 + e**value) = max(value, 0) + log(1 + u), u = e**-|value|.

    log(1 + u) is 2 artanh(s), s = u / (2 + u), at most 1/3.
    """
    builder = emitter.builder
    power = exp(emitter, builder.fneg(sizes(emitter, values)))
    ratio = builder.fdiv(power, builder.fadd(power, floats(2.0)))
    square = builder.fmul(ratio, ratio)
    series = floats(1.0 / (2 * _TERMS - 1))
    for term in range(_TERMS - 2, -1, -1):
        series = emitter.fma(series, square, floats(1.0 / (2 * term + 1)))
    log = builder.fmul(builder.fadd(ratio, ratio), series)
    positive = builder.fcmp_ordered(">", values, floats(0.0))
    return builder.fadd(builder.select(positive, values, floats(0.0)), log)
