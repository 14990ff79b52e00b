"""The words of a layer with experts: one int64 array tells its stages sizes and addresses.

Filled in by `backends/native/experts.py`. Scratch is the same for all layers; matrices, vectors and
the counter are a layer's own. Sizes are in elements and strides in bytes; 0 for what a layer lacks.
"""

from __future__ import annotations

# fmt: off
# A matrix: the address of its description (8 words, see `table.py`; the experts' are one below the
# other), of its tile functions (see below), and of its bias, f32 [experts, rows].
MATRIX, TILES, BIAS = range(3)

# A gated part: three matrices, the activation's row operation, its width, and where what comes out
# of gate and up goes: the address of the eight words of a matmul's input (`Rows`).
GATE, UP, DOWN, ACTIVATE, PART_WIDTH, INNER = 0, 3, 6, 9, 10, 11
PART_WORDS = 12

# The layer's two parts, and what decides about them. The row of a router is followed by the tile
# with the shared expert's gate where there is one.
EXPERTS, SHARED, ROUTER, SHARED_GATE = 0, 12, 24, 27
(NUM_EXPERTS, ACTIVE, GROUPS, ACTIVE_GROUPS, SCORE, CHOICE_BIAS, RENORMALISE, SCALE_BITS,
 WEIGH_INPUT, EXPERT_SCALE, ROUTER_SCALE_BITS) = range(30, 41)
"""SCORE is the row operation that makes scores of all logits; 0: a softmax of those chosen."""

# What is read and written: the input of the router and, when its time comes, of the experts (as
# INNER); rows of f32, to which the result is added or not; how many experts a pass has read.
INPUT, DIM, OUTPUT, OUTPUT_STRIDE, ACCUMULATE, RESIDUAL_BITS, EXPERTS_READ = range(41, 48)

# Row operations.
QUANTISE, SOFTMAX, SIGMOID, SCALE, ADD_SCALED, COPY = range(48, 54)

# Scratch of a pass: the router's logits f32; weights f32 and experts int64 [rows, active], rows
# in order of score; where a slot [row, active] is in the order of experts, and which slot is at a
# place there, int64; where an expert's places begin, int64 [experts + 1]; the experts with rows,
# int64, and how many they are; weights of the shared expert f32 [rows]; threads that have routed.
(LOGITS, LOGITS_STRIDE, WEIGHTS, CHOSEN, PLACES, SLOTS, OFFSETS, READ, NUM_READ, SHARED_WEIGHTS,
 ARRIVED) = range(54, 65)

# Scratch of a thread: the address of the first thread's and bytes to the next one's, then where in
# it rows of a gate and an up unit begin, those of a down unit (which may be where the others are),
# the shared expert's and a sum; and eight words for each thread: where its gathered rows are.
(ROOM, ROOM_STRIDE, GATE_ROOM, UP_ROOM, DOWN_ROOM, SHARED_ROOM, SUM_ROOM, GATHERED) = (
    range(65, 73))

# Where the layer's experts are: int64 [experts, 3, 2], addresses of the weights and the scales of
# gate, up and down; zeros while an expert is on disk. Of experts that are read from disk: passes
# that used each, int64 [experts]; the layer's number, and the word that tells it to who reads; the
# addresses of a lock that is released to ask, and of one that is released when all are there.
HELD, USED, NUMBER, ASKING, LOCKS = range(73, 78)
NUM_WORDS = 78
HELD_WORDS = 6
"""Of an expert."""
# fmt: on

UNIT = 4
"""Tiles of a unit of work."""
ROOM_BYTES = 64 * UNIT
"""From one row of a unit's outputs to the next."""
ROUTE_BYTES = 24
"""Of a thread's room while it routes, for each expert."""
TILE_COUNTS = 9
"""Tile functions of a type are int64 [9, 2]: address and rows at once for 1, 2, ... 8 and more."""
