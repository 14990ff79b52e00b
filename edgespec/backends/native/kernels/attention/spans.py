"""How attention is cut into pieces, and why its result does not depend on who computes which.

A row is one query head of one node. Positions are cut into spans of 512, counted from the row's
first key on, whatever else is in the pass:

    keys of a row, by position     |....... 512 .......|....... 512 .......|... rest|
    for each span, alone                m0, l0, o0          m1, l1, o1       m2, l2, o2
    in the end                     the spans' results together, in this order

m is the largest score of a span, l the sum of e**(score - m), o the values weighted by these
powers. Spans can be computed in any order by any thread: the operations are the same. Several rows
are computed at once, up to ROW_BLOCK, each in accumulators of its own, so that a key is loaded and
converted once for all of them.
"""

from __future__ import annotations

from edgespec.memory.plan.settings import MOST_NODES

SPAN = 512
"""Positions whose softmax is computed at once; whole blocks of the arena."""
ROW_BLOCK = 12
"""Rows whose queries lie together, [head_dim, 12]; two sums for each fit AVX-512's registers."""
ROWS_PER_ITEM = 4 * ROW_BLOCK
"""Rows of one key head that a thread takes on where rows are many."""
SPLIT_NODES = 16
"""Up to this many nodes, threads take spans instead of rows."""
WIDTH = SPAN + MOST_NODES + 80
"""Floats in one row of scores: a span, all nodes past it, and padding that keeps rows out of each
other's cache sets.
"""
SCORES_STRIDE = 4 * WIDTH
SCORES_ROWS = ROW_BLOCK + 2
"""Rows of scores a thread has; the last take the values' scales, and those one row sees."""
NUM_LOOP_ARGUMENTS = 12
"""64-bit integers that functions for scores and mixing take, as many as those for tiles."""


def row_sizes(lanes: int, digits: int = 1) -> tuple[int, ...]:
    """Numbers of rows that functions are made for: up to ROW_BLOCK, or what the registers hold."""
    most = _sums(lanes) // digits
    return tuple(size for size in (1, 2, 3, 4, 6, 8, 12) if size <= most)


def score_sizes(lanes: int) -> tuple[int, ...]:
    """The same for scores over f16 keys, which go six rows at a time through 16 registers: with
    more, LLVM keeps so many numbers of queries ready that sums are left in memory.
    """
    return tuple(size for size in row_sizes(lanes) if size <= _sums(lanes) // 2)


def at_once(num_rows: int, lanes: int, digits: int = 1) -> int:
    """Vectors a function computes for each row at a time: 1, 2 or 4, as many as registers allow."""
    rows = num_rows * digits
    registers = 32 if lanes == 16 else 16
    return next(
        width
        for width in (4, 2, 1)
        if width == 1 or (width * rows <= _sums(lanes) and width * (rows + 1) < registers)
    )


def _sums(lanes: int) -> int:
    """Accumulators: of 32 registers of 16 lanes, 16 of 8, or 32 of 4."""
    return 2 * ROW_BLOCK if lanes == 16 else ROW_BLOCK
