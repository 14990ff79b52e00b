"""Activations as row operations: gates of feed-forward parts, sigmoid gates, soft caps.

Emitted as those of `row_ops.py` are, and called alike: eight 64-bit integers, vectors of 16 lanes.
Inputs that are no numbers give none. The output may be an input.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgespec.backends.native.kernels import row_ops
from edgespec.backends.native.kernels.codegen.emit import F32, I32, V16F32, Emitter, Function, Value
from edgespec.backends.native.kernels.codegen.vectors import floats, one_plus_exp, sizes

_Pair = Callable[[Emitter, Value, Value], Value]

_ROOT = 0.7978845608028654
"""The square root of 2 / pi."""
_CUBIC = 0.044715
_CLAMP, _SLOPE = 7.0, 1.702
_SERIES = (
    -5.704986326724518e-3,
    2.063908656759872e-2,
    -5.373971484563952e-2,
    1.3331442194746995e-1,
    -3.3333281941853665e-1,
)
"""(tanh(x) - x) / x**3 in powers of x**2, highest first; fitted for |x| <= 5/8, where tanh is off
by 5e-9 of itself at most.
"""


def _sigmoid(emitter: Emitter, x: Value) -> Value:
    bottom = one_plus_exp(emitter, emitter.builder.fneg(x))
    return emitter.builder.fdiv(floats(1.0), bottom)


def _tanh(emitter: Emitter, x: Value) -> Value:
    """By a series near zero, where 1 - 2 / (1 + e**2x) would lose what is small."""
    builder = emitter.builder
    square = builder.fmul(x, x)
    series = floats(_SERIES[0])
    for term in _SERIES[1:]:
        series = emitter.fma(series, square, floats(term))
    near = emitter.fma(builder.fmul(x, square), series, x)
    size = sizes(emitter, x)
    bottom = one_plus_exp(emitter, builder.fadd(size, size))
    far = builder.fsub(floats(1.0), builder.fdiv(floats(2.0), bottom))
    far = emitter.call("llvm.copysign.v16f32", V16F32, [far, x])
    return builder.select(builder.fcmp_ordered(">", size, floats(0.625)), far, near)


def _gelu(emitter: Emitter, gate: Value, up: Value) -> Value:
    """The tanh form: (1 + tanh(z)) / 2 is the sigmoid of 2 z."""
    builder = emitter.builder
    square = builder.fmul(gate, gate)
    slope = emitter.fma(square, floats(2.0 * _ROOT * _CUBIC), floats(2.0 * _ROOT))
    bottom = one_plus_exp(emitter, builder.fneg(builder.fmul(gate, slope)))
    return builder.fmul(builder.fdiv(gate, bottom), up)


def _swiglu_oai(emitter: Emitter, gate: Value, up: Value) -> Value:
    builder = emitter.builder
    gate, up = (_at_most(emitter, value, _CLAMP) for value in (gate, up))
    up = builder.fneg(_at_most(emitter, builder.fneg(up), _CLAMP))
    bottom = one_plus_exp(emitter, builder.fmul(gate, floats(-_SLOPE)))
    return builder.fmul(builder.fdiv(gate, bottom), builder.fadd(up, floats(1.0)))


def _at_most(emitter: Emitter, values: Value, most: float) -> Value:
    builder = emitter.builder
    beyond = builder.fcmp_ordered(">", values, floats(most))
    return builder.select(beyond, floats(most), values)


def _sigmoid_gate(emitter: Emitter, values: Value, gate: Value) -> Value:
    return emitter.builder.fmul(values, _sigmoid(emitter, gate))


def _of_two(name: str, operation: _Pair) -> Function:
    """(left, right, output, vectors): output = operation(left, right)."""
    emitter = row_ops.start(name)
    left, right, target, count = emitter.arguments[:4]
    with emitter.loop(count) as index:
        one, other = (
            emitter.load(emitter.address(each, (index, 64)), V16F32, 4) for each in (left, right)
        )
        emitter.store(operation(emitter, one, other), emitter.address(target, (index, 64)))
    return emitter.done()


def tanh() -> Function:
    """(input, output, vectors): output = tanh(input)."""
    emitter = row_ops.start("tanh")
    source, target, count = emitter.arguments[:3]
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        emitter.store(_tanh(emitter, value), emitter.address(target, (index, 64)))
    return emitter.done()


def softcap() -> Function:
    """(input, output, vectors, cap bits): output = cap * tanh(input / cap)."""
    emitter = row_ops.start("softcap")
    builder = emitter.builder
    source, target, count, bits = emitter.arguments[:4]
    cap = emitter.splat(builder.bitcast(builder.trunc(bits, I32), F32))
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(source, (index, 64)), V16F32, 4)
        capped = builder.fmul(_tanh(emitter, builder.fdiv(value, cap)), cap)
        emitter.store(capped, emitter.address(target, (index, 64)))
    return emitter.done()


FUNCTIONS: dict[str, Callable[[], Function]] = {
    "silu": row_ops.gate,
    "gelu": partial(_of_two, "gelu", _gelu),
    "swiglu_oai": partial(_of_two, "swiglu_oai", _swiglu_oai),
    "sigmoid_gate": partial(_of_two, "sigmoid_gate", _sigmoid_gate),
    "tanh": tanh,
    "softcap": softcap,
}
"""By name; the first three, `Activation`s, are (gate, up, output, vectors): activation(gate) * up.
"sigmoid_gate" is (values, gate, output, vectors): values * sigmoid(gate).
"""
