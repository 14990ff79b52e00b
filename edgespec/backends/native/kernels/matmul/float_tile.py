"""Tiles of F32, F16 and BF16 weights: f32 activations, running sums of even and odd columns."""

from __future__ import annotations

from edgespec.backends.native.kernels.codegen.emit import F32, Emitter, Function, Value
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.matmul.integer_tile import PREFETCH, Operations, finish
from edgespec.models.spec import TensorType

_ELEMENT_BYTES = {TensorType.F32: 4, TensorType.F16: 2, TensorType.BF16: 2}
_SUMS = 2


def emit_tile(kind: TensorType, num_tokens: int, operations: Operations) -> Function:
    """LLVM text and function name of the tile function for one type and number of tokens.

    Sums stay in registers from the first column to the last, and fill half of them. Where that is
    too few for all rows and tokens, the columns are gone through again for the others.
    """
    lanes = tile.TILE_ROWS if num_tokens <= 2 else operations.lanes
    at_once = operations.lanes // 2
    name = tile.function_name(kind, num_tokens, operations.unrolled)
    emitter = Emitter(name, tile.NUM_ARGUMENTS, lanes)
    for first in range(0, tile.TILE_ROWS, lanes):
        for some in range(0, num_tokens, at_once):
            tokens = range(some, min(some + at_once, num_tokens))
            _emit_pass(emitter, kind, first, tokens)
    return emitter.done()


def _emit_pass(emitter: Emitter, kind: TensorType, first: int, tokens: range) -> None:
    """All columns of `lanes` rows from `first` on, for some tokens."""
    weights, _, activations, _, output, num_pairs = emitter.arguments[:6]
    activation_stride, _, _, output_stride, _, accumulate = emitter.arguments[6:]
    builder = emitter.builder
    size = _ELEMENT_BYTES[kind]
    step = tile.TILE_ROWS * size
    sums = emitter.running(_SUMS * len(tokens))
    with emitter.loop(num_pairs) as index:
        if first == tokens.start == 0:  # later ones find the columns in a cache
            for level, distance in PREFETCH:
                ahead = emitter.address(weights, (index, _SUMS * step), distance)
                emitter.prefetch(ahead, _SUMS * step, level)
        for lane in range(_SUMS):
            place = emitter.address(weights, (index, _SUMS * step), lane * step + first * size)
            column = _load(emitter, kind, place)
            for token, slot in zip(tokens, sums[lane::_SUMS], strict=True):
                value = emitter.address(
                    activations, (token, activation_stride), (index, 4 * _SUMS), 4 * lane
                )
                builder.store(
                    emitter.fma(column, emitter.splat_load(value, F32), builder.load(slot)), slot
                )
    for token, even, odd in zip(tokens, sums[::_SUMS], sums[1::_SUMS], strict=True):
        builder.store(builder.fadd(builder.load(even), builder.load(odd)), even)
        place = emitter.address(output, (token, output_stride), 4 * first)
        finish(emitter, even, place, accumulate)


def _load(emitter: Emitter, kind: TensorType, place: Value) -> Value:
    """One column of `lanes` rows as f32."""
    builder = emitter.builder
    if kind is TensorType.F32:
        return emitter.load(place, emitter.f32, 4)
    if kind is TensorType.F16:
        return emitter.half_vector(place)
    bits = builder.zext(emitter.load(place, emitter.i16, 2), emitter.i32)
    return builder.bitcast(builder.shl(bits, emitter.constant(16)), emitter.f32)
