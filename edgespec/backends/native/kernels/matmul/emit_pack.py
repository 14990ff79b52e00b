"""The functions that repack weights (see `pack.py`), as LLVM text."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.backends.native.kernels.codegen.emit import Emitter, Function, Value
from edgespec.backends.native.kernels.matmul import pack_blocks, pack_grids, tile
from edgespec.backends.native.kernels.matmul.pack import function_name, num_arguments
from edgespec.backends.native.kernels.matmul.pack_words import SourceRows
from edgespec.models.gguf.codebooks import GRID_TYPES
from edgespec.models.spec import TensorType

_SUPER_BLOCKS: dict[TensorType, Callable[[SourceRows, Value, Value, Value], None]] = {
    TensorType.Q6_K: pack_blocks.q6_k,
    TensorType.IQ4_XS: pack_blocks.iq4_xs,
    TensorType.MXFP4: pack_blocks.mxfp4,
    TensorType.NVFP4: pack_blocks.nvfp4,
    TensorType.Q3_K: pack_blocks.q3_k,
    TensorType.Q2_K: pack_blocks.q2_k,
    TensorType.TQ2_0: pack_blocks.tq2_0,
    TensorType.TQ1_0: pack_blocks.tq1_0,
}
"""Types with an order of their own."""


def emit_packer(kind: TensorType) -> Function:
    """LLVM text and name of the function."""
    form, emitter = tile.FORMATS[kind], Emitter(function_name(kind), num_arguments(kind))
    source, row_bytes, num_tiles, num_groups, weights, scales, *table = emitter.arguments
    group_bytes = form.group // kind.block_size * kind.block_bytes
    rows = SourceRows(emitter, row_bytes, emitter.stack_bytes(64 * (group_bytes // 4)))
    with emitter.loop(num_tiles) as index:
        row = emitter.builder.mul(index, emitter.integer(tile.TILE_ROWS))
        first = emitter.address(source, (row, row_bytes))
        done = emitter.builder.mul(index, num_groups)
        with emitter.loop(num_groups) as group:
            start = emitter.address(first, (group, group_bytes))
            place = emitter.builder.add(done, group)
            quads = emitter.address(weights, (place, form.weight_bytes))
            steps = emitter.address(scales, (place, form.scale_bytes))
            if form.is_float:
                pack_blocks.floats(rows, start, form.layout.bits, quads)
            elif kind in _SUPER_BLOCKS:
                _SUPER_BLOCKS[kind](rows, start, quads, steps)
            elif kind in GRID_TYPES:
                pack_grids.super_block(rows, kind, start, quads, steps, *table)
            elif form.layout.blocks == 1:
                pack_blocks.block(rows, start, form.layout, quads, steps)
            else:
                pack_blocks.super_block(rows, start, form.layout, quads, steps)
    return emitter.done()
