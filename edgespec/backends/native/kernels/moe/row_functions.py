"""Row operations of routing and of sums over experts, emitted as those of `row_ops.py` are."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.backends.native.kernels import row_ops
from edgespec.backends.native.kernels.codegen.emit import (
    F32,
    I32,
    LANES,
    V16F32,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.codegen.vectors import (
    exp,
    first_lanes,
    floats,
    larger,
    load_first,
    max_lanes,
    one_plus_exp,
    store_first,
    sum_lanes,
)


def _vector(emitter: Emitter, source: Value, index: Value) -> Value:
    return emitter.load(emitter.address(source, (index, 64)), V16F32, 4)


def _factor(emitter: Emitter, bits: Value) -> Value:
    return emitter.splat(emitter.builder.bitcast(emitter.builder.trunc(bits, I32), F32))


def softmax() -> Function:
    """(input, output, count): of `count` numbers; zeros up to the next 16th, which are read."""
    emitter = row_ops.start("softmax_row")
    builder = emitter.builder
    source, target, count = emitter.arguments[:3]
    vectors = emitter.groups(count, LANES)

    def masked(index: Value, other: float) -> Callable[[Value], Value]:
        mask = first_lanes(emitter, emitter.address(count, (index, -LANES)))
        return lambda value: builder.select(mask, value, floats(other))

    (best,) = emitter.running(1, floats(float("-inf")))
    with emitter.loop(vectors) as index:
        value = masked(index, float("-inf"))(_vector(emitter, source, index))
        builder.store(larger(emitter, builder.load(best), value), best)
    top = emitter.splat(max_lanes(emitter, builder.load(best)))
    (total,) = emitter.running(1)
    with emitter.loop(vectors) as index:
        power = exp(emitter, builder.fsub(_vector(emitter, source, index), top))
        power = masked(index, 0.0)(power)
        builder.store(builder.fadd(builder.load(total), power), total)
        emitter.store(power, emitter.address(target, (index, 64)))
    inverse = emitter.splat(sum_lanes(emitter, builder.load(total)))
    with emitter.loop(vectors) as index:
        value = builder.fdiv(_vector(emitter, target, index), inverse)
        emitter.store(value, emitter.address(target, (index, 64)))
    return emitter.done()


def sigmoid() -> Function:
    """(input, output, count): of `count` numbers, up to the next 16th."""
    emitter = row_ops.start("sigmoid_row")
    builder = emitter.builder
    source, target, count = emitter.arguments[:3]
    with emitter.loop(emitter.groups(count, LANES)) as index:
        bottom = one_plus_exp(emitter, builder.fneg(_vector(emitter, source, index)))
        emitter.store(builder.fdiv(floats(1.0), bottom), emitter.address(target, (index, 64)))
    return emitter.done()


def scale() -> Function:
    """(input, output, vectors, factor bits): output = input * factor."""
    emitter = row_ops.start("scale")
    source, target, count, bits = emitter.arguments[:4]
    factor = _factor(emitter, bits)
    with emitter.loop(count) as index:
        value = emitter.builder.fmul(_vector(emitter, source, index), factor)
        emitter.store(value, emitter.address(target, (index, 64)))
    return emitter.done()


def add_scaled() -> Function:
    """(input, output, vectors, factor bits): output += input * factor, rounded once."""
    emitter = row_ops.start("add_scaled")
    source, target, count, bits = emitter.arguments[:4]
    factor = _factor(emitter, bits)
    with emitter.loop(count) as index:
        before = _vector(emitter, target, index)
        value = emitter.fma(_vector(emitter, source, index), factor, before)
        emitter.store(value, emitter.address(target, (index, 64)))
    return emitter.done()


def copy() -> Function:
    """(source, target, source stride, target stride, rows, words): rows of 32-bit words."""
    emitter = row_ops.start("copy_rows")
    source, target, source_stride, target_stride, num_rows, count = emitter.arguments[:6]
    with emitter.loop(num_rows) as row, emitter.loop(emitter.groups(count, LANES)) as index:
        left = emitter.address(count, (index, -LANES))
        value = load_first(
            emitter, emitter.address(source, (row, source_stride), (index, 64)), left
        )
        place = emitter.address(target, (row, target_stride), (index, 64))
        store_first(emitter, value, place, left)
    return emitter.done()


FUNCTIONS: dict[str, Callable[[], Function]] = {
    "softmax_row": softmax,
    "sigmoid_row": sigmoid,
    "scale": scale,
    "add_scaled": add_scaled,
    "copy_rows": copy,
}
