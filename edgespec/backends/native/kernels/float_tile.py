"""Tiles of F32, F16 and BF16 weights: f32 activations, running sums of even and odd columns."""

from __future__ import annotations

from edgespec.backends.native.kernels import tile
from edgespec.backends.native.kernels.emit import (
    F32,
    V16F32,
    V16I16,
    V16I32,
    Emitter,
    Value,
)
from edgespec.backends.native.kernels.integer_tile import finish
from edgespec.backends.native.kernels.machine_code import new_module
from edgespec.models.spec import TensorType

_ELEMENT_BYTES = {TensorType.F32: 4, TensorType.F16: 2, TensorType.BF16: 2}
_SUMS = 2


def emit_tile(kind: TensorType, num_tokens: int) -> tuple[str, str]:
    """LLVM text and function name of the tile function for one type and number of tokens."""
    name = f"tile_{kind.name}_{num_tokens}"
    emitter = Emitter(new_module(name), name, tile.NUM_ARGUMENTS)
    weights, _, activations, _, output, num_pairs = emitter.arguments[:6]
    activation_stride, _, _, output_stride, _, accumulate = emitter.arguments[6:]
    builder = emitter.builder
    sums = emitter.running(_SUMS * num_tokens)
    step = tile.TILE_ROWS * _ELEMENT_BYTES[kind]
    with emitter.loop(num_pairs) as index:
        for lane in range(_SUMS):
            place = emitter.address(weights, (index, _SUMS * step), lane * step)
            column = _load(emitter, kind, place)
            for token in range(num_tokens):
                value = emitter.address(
                    activations, (token, activation_stride), (index, 4 * _SUMS), 4 * lane
                )
                slot = sums[_SUMS * token + lane]
                builder.store(
                    emitter.fma(column, emitter.splat_load(value, F32), builder.load(slot)), slot
                )
    for token in range(num_tokens):
        even, odd = sums[_SUMS * token : _SUMS * token + _SUMS]
        builder.store(builder.fadd(builder.load(even), builder.load(odd)), even)
        finish(emitter, even, emitter.address(output, (token, output_stride)), accumulate)
    emitter.done()
    return str(emitter.module), name


def _load(emitter: Emitter, kind: TensorType, place: Value) -> Value:
    """One column of 16 rows as f32."""
    builder = emitter.builder
    if kind is TensorType.F32:
        return emitter.load(place, V16F32, 4)
    if kind is TensorType.F16:
        return emitter.half_vector(place)
    bits = builder.zext(emitter.load(place, V16I16, 2), V16I32)
    return builder.bitcast(builder.shl(bits, emitter.constant(16)), V16F32)
