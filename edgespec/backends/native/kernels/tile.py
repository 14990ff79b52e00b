"""What a tile is: the shape in which weights lie in memory and the one function signature that
reads it.

A weight matrix [rows, columns] is cut into tiles of 16 rows. Inside a tile the rows are
interleaved, so that one 512-bit load holds 4 consecutive columns of all 16 rows (8-bit weights;
4-bit ones pack two such quads in a load):

            columns 0..3      4..7
    row  0 [ a a a a ]    [ . . . . ]    memory: a a a a b b b b c c c c ... (64 bytes: quad 0)
    row  1 [ b b b b ]    [ . . . . ]            then the same 16 rows' columns 4..7 (quad 1)
    row  2 [ c c c c ]                           ...
     ...

For each of n tokens a tile function broadcasts 4 bytes of the token's activations against that load
and adds the 16 dot products to 16 integer sums. Each weight is loaded once for all n tokens, which
is why verifying 8 tokens costs little more than decoding one. Sums are kept per block of 32 columns
in int32 (exact), scaled to float once per block and added in column order by fused multiply-adds:
the same operations in the same order whatever n is, so a token's row does not depend on what else
is in the batch.

Activations are int8 with one scale per block of 32 (plane SCALE), and what the weight types need of
their sums: weights are stored unsigned (q + 128, q + 8, q + 32), and the start of each integer sum
takes the offset back out.

A tile function, the same for all types and instruction sets, takes twelve 64-bit integers:

    weights, scales     addresses of this tile's packed weights and scales
    activations, planes addresses of the first token's int8 (or f32) row and of its plane SCALE
    output              address of the first token's 16 f32 results
    num_blocks          blocks of 32 columns (float types: pairs of columns)
    activation_stride   bytes from one token's activations to the next
    plane_row_stride    bytes from one token's row of a plane to the next
    plane_stride        bytes from one plane to the next
    output_stride       bytes from one token's results to the next
    num_tokens          tokens to compute (functions made for one n ignore it)
    accumulate          1 adds to the output (the residual stream), 0 overwrites it
"""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.models.spec import TensorType

TILE_ROWS = 16
BLOCK = 32
NUM_ARGUMENTS = 12

SCALE = 0
"""f32: the block's activation scale."""
START_128 = 1
"""i32: -128 times the block's integer sum (Q8_0)."""
START_8 = 2
"""i32: -8 times the block's integer sum (Q4_0)."""
START_32_LOW = 3
"""i32: -32 times the sum of the block's first half (Q6_K)."""
START_32_HIGH = 4
"""i32: -32 times the sum of the block's second half (Q6_K)."""
SUM = 5
"""f32: the scale times the block's integer sum (types with a minimum: Q4_K)."""
NUM_PLANES = 6

INTEGER_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
FLOAT_SIZES = (1, 2, 4, 8)
"""Numbers of tokens a tile function is made for; other n are padded up to the next."""


@dataclass(frozen=True, slots=True)
class TileFormat:
    """How one tensor type is packed: bytes per tile of 16 rows for each `group` of columns."""

    type: TensorType
    group: int
    """Columns that the byte counts are for; a matrix needs a multiple of it."""
    weight_bytes: int
    scale_bytes: int

    @property
    def is_float(self) -> bool:
        """Computed from f32 activations; the others take int8."""
        return self.scale_bytes == 0

    @property
    def sizes(self) -> tuple[int, ...]:
        return FLOAT_SIZES if self.is_float else INTEGER_SIZES

    def tile_bytes(self, num_columns: int) -> tuple[int, int]:
        """Bytes of weights and of scales in one tile of a matrix with `num_columns` columns."""
        groups = num_columns // self.group
        return groups * self.weight_bytes, groups * self.scale_bytes

    def matrix_bytes(self, num_rows: int, num_columns: int) -> int:
        """Bytes of a packed matrix; rows are padded to whole tiles."""
        return -(-num_rows // TILE_ROWS) * sum(self.tile_bytes(num_columns))


FORMATS: dict[TensorType, TileFormat] = {
    entry.type: entry
    for entry in (
        # Pairs of columns, because a float tile keeps two running sums.
        TileFormat(TensorType.F32, 2, 2 * 64, 0),
        TileFormat(TensorType.F16, 2, 2 * 32, 0),
        TileFormat(TensorType.BF16, 2, 2 * 32, 0),
        TileFormat(TensorType.Q8_0, 32, 512, 32),
        TileFormat(TensorType.Q4_0, 32, 256, 32),
        # Super-blocks of 256: f16 scale and minimum, then 8 scale and 8 minimum bytes for each row.
        TileFormat(TensorType.Q4_K, 256, 2048, 320),
        # Super-blocks of 256: nibbles and pairs of high bits; f16 scale and 16 scale bytes a row.
        TileFormat(TensorType.Q6_K, 256, 3072, 288),
    )
}
