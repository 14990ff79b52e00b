"""The table: one int64 array that tells the kernels all sizes and where everything lies.

Kernels are handed this one array instead of dozens of typed ones, because Numba's compile time
grows with the number of arrays a function takes. Entries are sizes, addresses, or strides in bytes;
`_STRIDE` is from one row to the next. `native/scratch.py` and `native/shapes.py` fill it in, and
keep the arrays alive that it points to.

A model whose layers differ in their attention has a table for each shape of it: entries marked with
a star are the shape's own, those of the job at hand are copied from the first when a pass starts,
and the rest are alike.
"""

from __future__ import annotations

from edgespec.backends.native.kernels.matmul.tile import FORMATS

# fmt: off
# The model: width, and what norms add to the mean square, as bits of an f32.
DIM, EPSILON_BITS, VOCAB_SIZE = range(3)

# The shape of attention *: heads, widths of a head's keys and values, pairs that rotate (0 for
# none), their layout, the factor of queries as bits of an f32, whether heads are normed after they
# rotated, heads that fill whole tiles (what one thread computes, rotates and stores at a time), the
# operation that caps scores softly (0: none) and the cap as bits of an f32, positions that are seen
# (0: all), positions of a chunk (0: none), and how queries grow with their position: span (0: not),
# then where slope and offset lie, f64.
(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, VALUE_DIM, ROPE_HALF, INTERLEAVED, QUERY_SCALE_BITS,
 NORM_AFTER_ROPE, UNIT_HEADS, SOFTCAP, SOFTCAP_BITS, WINDOW, CHUNK, GROWTH_SPAN, GROWTH_SLOPE,
 GROWTH_OFFSET) = range(3, 19)

# The KV arena *: positions in a block, then one head's part of it (`memory/kv/arena.py`), steps of
# the scoring loop, whether it is integers with scales, bytes of a softmax weight, and bytes from
# one number of a query to the next and from one query to the next.
(BLOCK, HEAD_BYTES, KEY_BYTES, KEY_TILE_BYTES, KEY_SCALES, VALUE_BYTES, VALUE_SCALES,
 KEY_STEPS, KV_SCALED, WEIGHT_BYTES, QUERY_STEP, QUERY_ROW) = range(19, 31)

# The pass at hand: its trees' nodes (int32, columns below), slots of ancestors (int32), the
# sequences they belong to * (int64, columns below; see `grouped_query.py`).
NODES, EXTRA, PARTS, NUM_PARTS = range(31, 35)

# Rotation *: frequencies f64, what cosines and sines are multiplied by as bits of an f64, both, f32
# [rows, pairs], and how far ahead of their positions nodes are rotated.
FREQUENCIES, MAGNITUDE, COSINES, SINES, ANGLE_STRIDE, AHEAD = range(35, 41)

# Scratch, f32: rows of activations.
(STREAM, STREAM_STRIDE, BRANCH, BRANCH_STRIDE, QUERY, QUERY_STRIDE, KEY, KEY_STRIDE, VALUE,
 VALUE_STRIDE, UP, UP_STRIDE, GATES, GATES_STRIDE, LOGITS, LOGITS_STRIDE, MAXIMA, MAXIMA_STRIDE) = (
    range(41, 59))

# Attention's scratch: queries (of a key head, of 12 rows), scores (of a thread), what spans come to
# (of a row), nodes up to which threads share spans, and rows of a key head then *.
(ROTATED, ROTATED_HEAD, ROTATED_BLOCK, SCORES, SCORES_THREAD, MIXED, MIXED_STRIDE, FACTS,
 FACTS_STRIDE, SPLIT_NODES, SPLIT_ROWS) = range(59, 70)

# Three matmul inputs, each with the eight entries below.
NORMED, ATTENDED, GATED = range(70, 94, 8)
(FLOATS, FLOATS_STRIDE, QUANTS, QUANTS_STRIDE, PLANES, PLANES_STRIDE, PLANE_BYTES_EACH,
 HAS_QUANTS) = range(8)

# The program (see below), how many of its stages come before any layer, and addresses of the tables
# of other shapes.
PROGRAM, NUM_PRELUDE, OTHERS, NUM_OTHERS = range(94, 98)

# The job at hand: stages of the layers from the first to before the last, and of the head; rows,
# the first of them in the stream, threads; and the team that does it (see `work_sharing.py`): its
# words, and the functions of its locks.
(FIRST_STAGE, LAST_STAGE, HEAD_FIRST, HEAD_LAST, NUM_ROWS, FIRST_ROW, THREADS, TEAM, ACQUIRE,
 RELEASE) = range(98, 108)

# Functions: row operations (their order in `isa.row_addresses`), attention's * (in
# `loop_table.py`: after the first ones, the most rows of scores at once and scores for 1 to 12,
# then the same of mixing), then by type: tiles and their sizes. Row operations take so many 64-bit
# integers.
OPS = 108
NORM, QUANTISE, GATE, ROTATE, TILE_MAXIMA = range(5)
NUM_OPS, NUM_TYPES = 5, len(FORMATS)
ATTENTION = OPS + NUM_OPS
(SOFTMAX, COMBINE, TURN, STORE_KEY, STORE_VALUE, PUT_QUERY, SPREAD, WEIGH, SCORE_ROWS, SCORE,
 MIX_ROWS, MIX) = (*range(10), 9 + 12, 10 + 12)
NUM_ATTENTION = 10 + 2 * 12
TILES = ATTENTION + NUM_ATTENTION
SIZES = TILES + NUM_TYPES
NUM_ENTRIES = SIZES + NUM_TYPES

NUM_ROW_ARGUMENTS = 8

# Columns of a stage of the program: the function, the table it is handed, and then what each kind
# of stage takes (named in its own file).
ENTRY, TABLE, ARGUMENTS = range(3)
STAGE_WORDS = 24
STAGE_BYTES = 8 * STAGE_WORDS

# Columns of a node: its position, how many leading slots it sees, where its list of further
# ancestors starts, its part, its slot. Columns of a part: its first node, the first row of its
# queries, its committed length, the address of its blocks' addresses, and the end of its slots.
# After the last part and node comes where the next would begin.
POSITION, RUN, EXTRA_START, PART, SLOT, NODE_COLUMNS = range(6)
FIRST_NODE, FIRST_QUERY, LENGTH, BLOCKS, END, PART_COLUMNS = range(6)

# Columns of a matrix.
TYPE, WEIGHTS, SCALES, NUM_TILES, STEPS, TILE_BYTES, SCALE_BYTES, IS_FLOAT = range(8)
MATRIX_WORDS = 8
# fmt: on
