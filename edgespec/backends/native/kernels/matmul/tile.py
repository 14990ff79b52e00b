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

How a tile is walked depends on the registers; what is computed does not:

    many (AVX-512), up to 8 tokens        few (AVX2, AVX-VNNI, NEON), or more tokens
    for each block of 32 columns          for each block of 32 columns
        load 8 quads of 16 rows               for rows 0..7, then 8..15 (AVX-512: 0..15)
        for each token: to its sums,              load 8 quads of these rows
            which stay in registers               for each token: to its sums, in memory

Activations are int8 with one scale per block of 32 (plane SCALE), and what the weight types need of
their sums: weights are stored unsigned (q + 128, q + 8, q + 16, q + 32), and the start of each
integer sum takes the offset back out.

A block of quantised weights, 32 columns of 16 rows, lies like this; each word is 64 bytes:

    8 bits a weight     8 words: quads 0..7
    4, 5, 6 bits        4 words: quad i in the low halves of the bytes, quad i + 4 in the high ones
    then, of 5 bits     1 word: bit i of a byte is the fifth bit of the byte's weight in quad i
    then, of 6 bits     2 words of four quads each: bits 2 i and 2 i + 1 likewise
    2, 3 bits           2 words of four quads each: bits 2 i and 2 i + 1 of a byte are quad i's
    then, of 3 bits     1 word: bit i of a byte is the third bit of the byte's weight in quad i

Its scales are 16 f16 and, for types that have one, 16 f16 minima. In super-blocks of 256 columns
these are followed by bytes that multiply them: 16 for each part of a block that has its own scale,
part after part, then 16 for each block's minimum; in Q2_K scale and minimum of a part share a byte.
Scales of MXFP4 and NVFP4 are floats of 8 bits, 16 for each part.

Weights of table-lookup types are places in a table of 16, found by one permutation of bytes. Those
of grid types are unpacked to such places, which need no gathering: 3 or 4 bits a weight.

A tile function, the same for all types and instruction sets, takes twelve 64-bit integers:

    weights, scales     addresses of this tile's packed weights and scales
    activations, planes addresses of the first token's int8 (or f32) row and of its plane SCALE
    output              address of the first token's 16 f32 results
    num_blocks          blocks of 32 columns (float types: pairs of columns)
    activation_stride   bytes from one token's activations to the next
    plane_row_stride    bytes from one token's row of a plane to the next
    plane_stride        bytes from one plane to the next
    output_stride       bytes from one token's results to the next
    num_tokens          tokens to compute (functions made for just one n ignore it)
    accumulate          1 adds to the output (the residual stream), 0 overwrites it
"""

from __future__ import annotations

from typing import NamedTuple

from edgespec.models.gguf import codebooks
from edgespec.models.spec import TensorType
from edgespec.system.records import dataclass

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
"""i32: -32 times the sum of the block's first half (Q6_K; others shift it)."""
START_32_HIGH = 4
"""i32: -32 times the sum of the block's second half (Q6_K; others shift it)."""
SUM = 5
"""f32: the scale times the block's integer sum (types with a minimum)."""
START_16 = 6
"""i32: -16 times the block's integer sum (Q5_0; others shift it)."""
NUM_PLANES = 7
HALF_STARTS = (START_32_LOW, START_32_HIGH)

INTEGER_SIZES = (1, 2, 3, 4, 6, 8, 48)
"""Numbers of tokens a tile function is made for; other n are padded up to the next.

Only the last is a function that computes no more than it is told: 48 tokens' sums fit in 4 KiB.
"""
FLOAT_SIZES = (1, 2, 4, 8)
"""The same for F32, F16 and BF16, whose last function is repeated."""


def padded(num_tokens: int) -> int:
    """Rows that tile functions write for this many tokens, at most, whatever the type."""
    last = FLOAT_SIZES[-1]
    floats = next(
        (size for size in FLOAT_SIZES if size >= num_tokens), -(-num_tokens // last) * last
    )
    return max(
        floats, next((size for size in INTEGER_SIZES[:-1] if size >= num_tokens), num_tokens)
    )


HALF, E8M0, E4M3 = range(3)
"""What a type's steps are: f16; the exponent of half a power of two; halves of unsigned floats with
4 bits of exponent and 3 of mantissa.
"""


class Layout(NamedTuple):
    """How weights of one type are packed, in numbers that kernels can be handed.

    A weight is `step * (quant - offset) - minimum`; with a codebook, the quant is looked up, and
    the offset is what the looked-up values have on top while they are multiplied.
    """

    bits: int
    """Of a weight; 16 and 32 are floats."""
    scale_bytes: int = 0
    """Of 16 rows of one block or super-block."""
    blocks: int = 1
    """Blocks of 32 columns whose scales lie together: 8 in super-blocks, which share f16 ones."""
    parts: int = 1
    """Parts of a block with a scale of their own."""
    offset: int = 0
    """What was added to make weights unsigned."""
    minimum: bool = False
    """Whether blocks have a minimum; factors are unsigned in types that do, signed in others."""
    codebook: int = codebooks.NO_CODEBOOK
    """The table in `codebooks.py` that quants are places in."""
    upper_half: bool = False
    """Whether a float of 16 bits is the upper half of an f32 (BF16)."""
    factors: int = 0
    """Bits of what multiplies f16 scales in each part: 8, or 4 below the 4 of the part's minimum.
    """
    step: int = HALF
    """What scales are; those that are not f16 are bytes of their own in each part."""
    unit: float = 1.0
    """A power of two that steps are multiplied by."""
    raised: int = 0
    """Bits by which quants are shifted left when they are taken out of a word, for the offset."""


@dataclass(frozen=True, slots=True)
class TileFormat:
    """How one tensor type is packed: bytes per tile of 16 rows for each `group` of columns."""

    type: TensorType
    layout: Layout

    @property
    def is_float(self) -> bool:
        """Computed from f32 activations; the others take int8."""
        return self.scale_bytes == 0

    @property
    def group(self) -> int:
        """Columns that the byte counts are for; a matrix needs a multiple of it.

        Pairs for floats, because a float tile keeps two running sums.
        """
        return 2 if self.is_float else BLOCK * self.layout.blocks

    @property
    def weight_bytes(self) -> int:
        return TILE_ROWS * self.group * self.layout.bits // 8

    @property
    def scale_bytes(self) -> int:
        return self.layout.scale_bytes

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


def _super(bits: int, parts: int, offset: int, codebook: int = 0, unit: float = 1.0) -> Layout:
    """Super-blocks without minima: an f16, and a factor for each part of their 8 blocks."""
    scale_bytes = 32 + 8 * parts * TILE_ROWS
    return Layout(bits, scale_bytes, 8, parts, offset, codebook=codebook, factors=8, unit=unit)


FORMATS: dict[TensorType, TileFormat] = {
    kind: TileFormat(kind, layout)
    for kind, layout in {
        TensorType.F32: Layout(32),
        TensorType.F16: Layout(16),
        TensorType.BF16: Layout(16, upper_half=True),
        TensorType.Q8_0: Layout(8, 32, offset=128),
        TensorType.Q4_0: Layout(4, 32, offset=8),
        TensorType.Q4_1: Layout(4, 64, minimum=True),
        TensorType.Q5_0: Layout(5, 32, offset=16),
        TensorType.Q5_1: Layout(5, 64, minimum=True),
        TensorType.IQ4_NL: Layout(4, 32, offset=128, codebook=codebooks.IQ4_NL),
        TensorType.Q4_K: Layout(4, 64 + 256, blocks=8, minimum=True, factors=8),
        TensorType.Q5_K: Layout(5, 64 + 256, blocks=8, minimum=True, factors=8),
        TensorType.Q6_K: Layout(6, 32 + 256, blocks=8, parts=2, offset=32, factors=8),
        TensorType.IQ4_XS: _super(4, 1, 128, codebooks.IQ4_NL),
        TensorType.MXFP4: Layout(4, 16, offset=16, codebook=codebooks.FP4, step=E8M0),
        TensorType.NVFP4: Layout(4, 64, 2, 2, offset=32, codebook=codebooks.FP4, step=E4M3),
        TensorType.Q3_K: _super(3, 2, 32, unit=1 / 8)._replace(raised=3),
        TensorType.Q2_K: Layout(2, 64 + 256, blocks=8, parts=2, minimum=True, factors=4),
        TensorType.IQ3_S: _super(4, 1, 16, codebooks.IQ3_S),
        TensorType.IQ3_XXS: _super(4, 1, 64, codebooks.IQ3_XXS, 1 / 4),
        TensorType.IQ2_S: _super(3, 2, 64, codebooks.IQ2, 1 / 8),
        TensorType.IQ2_XS: _super(3, 2, 64, codebooks.IQ2, 1 / 8),
        TensorType.IQ2_XXS: _super(3, 1, 64, codebooks.IQ2, 1 / 8),
        TensorType.IQ1_M: _super(3, 2, 32, codebooks.IQ1, 1 / 8),
        TensorType.IQ1_S: _super(3, 1, 16, codebooks.IQ1, 1 / 8),
        TensorType.TQ2_0: Layout(2, 32, blocks=8, offset=8, codebook=codebooks.TERNARY),
        TensorType.TQ1_0: Layout(2, 32, blocks=8, offset=8, codebook=codebooks.TERNARY),
    }.items()
}


def function_name(kind: TensorType, num_tokens: int, unrolled: int) -> str:
    """What the tile function for a type and number of tokens is called: quantised types have one
    for every number above `unrolled`.
    """
    is_own = FORMATS[kind].is_float or num_tokens <= unrolled
    return f"tile_{kind.name}_{num_tokens if is_own else 'many'}"
