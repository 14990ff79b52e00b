"""The table: one int64 array that tells the kernels all sizes and where everything lies.

Kernels are handed this one array instead of dozens of typed ones, because Numba's compile time
grows with the number of arrays a function takes. Entries are sizes, addresses, or strides in bytes;
`_STRIDE` is from one row to the next. `program.py` fills it in, and keeps the arrays alive that it
points to.
"""

from __future__ import annotations

from edgespec.backends.native.kernels.matmul.tile import FORMATS

# fmt: off
# The model's shape.
(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HEAD_PAD, DIM, FFN_DIM, ROPE_HALF, INTERLEAVED, QK_NORM, BIASED,
 EPSILON_BITS, QUERY_SCALE_BITS) = range(12)

# The pass at hand: its trees' nodes (int32, columns below), slots of ancestors (int32), the texts
# they belong to (int64, columns below; see `grouped_query.py`).
NODES, EXTRA, PARTS, NUM_PARTS = range(12, 16)

# Of the job at hand (see below for the rest of it): the first layer, and whether the head comes
# after the layers.
FIRST_LAYER, WITH_HEAD = 16, 17

# The KV arena: positions in a block, then one head's part of it (`memory/kv/arena.py`), steps of
# the scoring loop, whether it is integers with scales, bytes of a softmax weight.
(BLOCK, HEAD_BYTES, KEY_BYTES, KEY_TILE_BYTES, KEY_SCALES, VALUE_BYTES, VALUE_SCALES,
 KEY_STEPS, KV_SCALED, WEIGHT_BYTES) = range(18, 28)

# Weights: int64 [layers, 7, 8] (columns below), one such row for the head, and small f32 vectors.
MATRICES, HEAD_MATRIX, NORMS, LAST_NORM_WEIGHT, HEAD_NORMS, BIASES, FREQUENCIES = range(28, 35)

# Scratch, f32: rows of activations.
(STREAM, STREAM_STRIDE, QUERY, QUERY_STRIDE, KEY, KEY_STRIDE, VALUE, VALUE_STRIDE, UP, UP_STRIDE,
 COSINES, SINES, ANGLE_STRIDE, LOGITS, LOGITS_STRIDE, VOCAB_SIZE, MAXIMA, MAXIMA_STRIDE) = (
    range(35, 53))

# Attention's scratch: queries (of a key head, of 12 rows), scores (of a thread), what spans come to
# (of a row), nodes up to which threads share spans, and rows of a key head then.
(ROTATED, ROTATED_HEAD, ROTATED_BLOCK, SCORES, SCORES_THREAD, MIXED, MIXED_STRIDE, FACTS,
 FACTS_STRIDE, SPLIT_NODES, SPLIT_ROWS) = range(53, 64)

# Three matmul inputs, each with the eight entries below.
NORMED, ATTENDED, GATED = range(64, 88, 8)
(FLOATS, FLOATS_STRIDE, QUANTS, QUANTS_STRIDE, PLANES, PLANES_STRIDE, PLANE_BYTES_EACH,
 HAS_QUANTS) = range(8)

# The job at hand, and the team that does it (see `work_sharing.py`): its words, and the functions
# of its locks.
# UNIT_HEADS heads fill whole tiles: what one thread computes, rotates and stores at a time.
NUM_LAYERS, FIRST_ROW, NUM_ROWS, UNIT_HEADS, TEAM, ACQUIRE, RELEASE = range(88, 95)

# Functions: row operations (their order in `row_ops.table`), attention's (in `attention_ops.table`:
# after the first ones, scores and mixing for 1 to 12 rows), then by type: tiles and their sizes.
OPS = 95
NORM, QUANTISE, GATE, ROTATE, TILE_MAXIMA = range(5)
NUM_OPS, NUM_TYPES = 5, len(FORMATS)
ATTENTION = OPS + NUM_OPS
(SOFTMAX, COMBINE, TURN, STORE_KEY, STORE_VALUE, PUT_QUERY, SPREAD, WEIGH, MOST_ROWS, SCORE,
 MIX) = (*range(10), 9 + 12)
NUM_ATTENTION = 9 + 2 * 12

# Between the layers and the head of a pass that ends early: the address of a matrix's row of the
# table of matrices, 0 for none, and of the gain of the norm before it, f32 [dim].
ADAPTER, ADAPTER_NORM = ATTENTION + NUM_ATTENTION, ATTENTION + NUM_ATTENTION + 1
TILES = ATTENTION + NUM_ATTENTION + 2
SIZES = TILES + NUM_TYPES
NUM_ENTRIES = SIZES + NUM_TYPES

# Columns of a node: its position, how many leading slots it sees, where its list of further
# ancestors starts, its part, its slot. Columns of a part: its first node, the first row of its
# queries, its committed length, the address of its blocks' addresses, and the end of its slots.
# After the last part and node comes where the next would begin.
POSITION, RUN, EXTRA_START, PART, SLOT, NODE_COLUMNS = range(6)
FIRST_NODE, FIRST_QUERY, LENGTH, BLOCKS, END, PART_COLUMNS = range(6)

# Columns of the table of matrices, and the places of a layer's seven (the
# head, which is none of a layer's, is the eighth).
TYPE, WEIGHTS, SCALES, NUM_TILES, STEPS, TILE_BYTES, SCALE_BYTES, IS_FLOAT = range(8)
WQ, WK, WV, WO, WGATE, WUP, WDOWN, WHEAD = range(8)
# fmt: on
