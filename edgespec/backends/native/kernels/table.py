"""The table: one int64 array that tells the kernels all sizes and where everything lies.

Kernels are handed this one array instead of dozens of typed ones, because Numba's compile time
grows with the number of arrays a function takes. Entries are sizes, addresses, or strides in bytes;
`_STRIDE` is from one row to the next. `session.py` fills it in, and keeps the arrays alive that it
points to.
"""

from __future__ import annotations

from edgespec.backends.native.kernels.tile import FORMATS

# fmt: off
# The model's shape.
(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HEAD_PAD, DIM, FFN_DIM, ROPE_HALF, INTERLEAVED, QK_NORM, BIASED,
 EPSILON_BITS, QUERY_SCALE_BITS) = range(12)

# The pass at hand: committed positions P, and the tree as int32 arrays (see `attention.py`).
LENGTH, DEPTH, RUN, EXTRA_START, EXTRA = range(12, 17)

# The KV arena: int64 array of block addresses, positions in a block, bytes of its parts.
BLOCKS, BLOCK, PLANE_BYTES, KEY_TILE_BYTES, VALUE_BYTES = range(17, 22)

# Weights: int64 [layers, 7, 8] (columns below), one such row for the head, and small f32 vectors.
MATRICES, HEAD_MATRIX, NORMS, LAST_NORM_WEIGHT, HEAD_NORMS, BIASES, FREQUENCIES = range(22, 29)

# Scratch, f32: rows of activations, and what each thread uses for attention.
(STREAM, STREAM_STRIDE, QUERY, QUERY_STRIDE, KEY, KEY_STRIDE, VALUE, VALUE_STRIDE, UP, UP_STRIDE,
 ROTATED, ROTATED_HEAD, ROTATED_STRIDE, COSINES, SINES, ANGLE_STRIDE, SCORES, SCORES_THREAD,
 SCORES_STRIDE, MIXED, MIXED_THREAD, MIXED_STRIDE, INVERSE, INVERSE_THREAD, LOGITS,
 LOGITS_STRIDE, VOCAB_SIZE, MAXIMA, MAXIMA_STRIDE) = range(29, 58)

# Three matmul inputs, each with the eight entries below.
NORMED, ATTENDED, GATED = range(58, 82, 8)
(FLOATS, FLOATS_STRIDE, QUANTS, QUANTS_STRIDE, PLANES, PLANES_STRIDE, PLANE_BYTES_EACH,
 HAS_QUANTS) = range(8)

# The job at hand, and the team that does it (see `team.py`): its words, and the lock functions.
# UNIT_HEADS heads fill whole tiles: what one thread computes, rotates and stores at a time.
NUM_LAYERS, FIRST_ROW, NUM_ROWS, UNIT_HEADS, TEAM, ACQUIRE, RELEASE = range(82, 89)

# Functions: row operations (their order in `row_ops.table`), then by type: tiles and their sizes.
OPS = 89
NORM, QUANTISE, GATE, SOFTMAX, ROTATE, SCORE, MIX, TILE_MAXIMA = 0, 1, 2, 3, 4, 5, 9, 13
NUM_OPS, NUM_TYPES = 14, len(FORMATS)
TILES = OPS + NUM_OPS
SIZES = TILES + NUM_TYPES
NUM_ENTRIES = SIZES + NUM_TYPES

# Columns of the table of matrices, and the places of a layer's seven (the
# head, which is none of a layer's, is the eighth).
TYPE, WEIGHTS, SCALES, NUM_TILES, STEPS, TILE_BYTES, SCALE_BYTES, IS_FLOAT = range(8)
WQ, WK, WV, WO, WGATE, WUP, WDOWN, WHEAD = range(8)
# fmt: on
