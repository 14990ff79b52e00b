"""A market's step in two compiled calls: drafting before the pass, and learning after it.

The ledger int64 [sources, columns] says of each source what it did in this step and when it is
asked next. A free source that brings nothing in this text falls silent: after PATIENCE proposals in
a row without a right token that was its own to say, it is asked every 2nd, 3rd, 5th, ... step. That
is counted in steps and tokens and never in seconds, so that the same replies are drafted alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import NUM_OUTCOME_WORDS, OUTCOME_NEW, describe_outcome, grow, settle
from edgespec.drafting.market.acceptance import record_tree
from edgespec.drafting.market.merging import (
    CHANCES,
    CHOSEN,
    LAST,
    NODES,
    NUM_MERGED,
    OWN,
    PLACE,
    STATISTICS,
    add_tree,
    likeliest,
    record_merged,
)
from edgespec.drafting.proposal import CHANCES as OWN_CHANCES
from edgespec.drafting.proposal import FEED, PARENTS, TOKENS
from edgespec.system.addresses import (
    WORD_BYTES,
    call,
    float32_line,
    float64_block,
    float64_rows,
    int16_line,
    int32_line,
    int32_rows,
    int64_line,
    int64_rows,
    set_word,
    word,
)
from edgespec.system.jit import inner_kernel, kernel

LEDGER, PENDING, NUM_PENDING, CREDIT, OUTCOME = OWN, OWN + 3, OWN + 5, OWN + 6, OWN + 8
NUM_WORDS = OUTCOME + NUM_OUTCOME_WORDS
"""Words of a market's table, after those of `merging.py`."""
TABLE, FREE, READ, ASKED, SIZE, RIGHT, WAIT, SILENCE, IDLE = range(9)
NUM_COLUMNS = 9
"""Of the ledger: the address of a source's table, or 0 for one that Python asks; whether it is
asked unless it is silent; how many of the pending tokens its store has read; whether it was asked,
and the size of its tree, 0 without one; how many of its tokens were right; for how many steps it is
silent, and was before; proposals in a row that brought nothing.
"""
PATIENCE = 128
LONGEST_SILENCE = 4
_INT32_BYTES = 4


@inner_kernel
def draft_one(core: int, row: NDArray[np.int64], number: int, max_nodes: int) -> None:
    """Feed a source what it has not read, let its tree grow and merge it."""
    table, count = row[TABLE], word(core, NUM_PENDING)
    if row[READ] < count:
        unread = word(core, PENDING) + _INT32_BYTES * row[READ]
        call(word(table, FEED), table, unread, count - row[READ])
        row[READ] = count
    size = grow(table, word(core, LAST), max_nodes)
    if size < 2:
        return
    row[SIZE] = size
    merged = add_tree(
        float64_block(core, STATISTICS),
        int32_line(table, TOKENS)[:size],
        int16_line(table, PARENTS)[:size],
        float32_line(table, OWN_CHANCES)[:size],
        number,
        int32_rows(core, NODES),
        float64_rows(core, CHANCES),
        int32_line(core, PLACE),
        word(core, NUM_MERGED),
        0,
    )
    set_word(core, NUM_MERGED, merged)


@kernel("int64", "int64", "bool", "bool", result="int64")
def draft(core: int, max_nodes: int, free: bool, whole: bool) -> int:
    """Ask the free sources whose turn it is, if `free`, and merge what those say that have a table;
    return the number of nodes proposed, or 1 unless these are the `whole` market.
    """
    ledger = int64_rows(core, LEDGER)
    set_word(core, NUM_MERGED, 0)
    int32_line(core, CHOSEN)[0] = 0
    for source in range(len(ledger)):
        row = ledger[source]
        row[ASKED], row[SIZE] = 0, 0
        if free and row[FREE] != 0:
            if row[WAIT] > 0:
                row[WAIT] -= 1
            else:
                row[ASKED] = 1
                if row[TABLE] != 0:
                    draft_one(core, row, source + 1, max_nodes)
    behind = False
    for source in range(len(ledger)):
        behind = behind or ledger[source, READ] < word(core, NUM_PENDING)
    if not behind:
        set_word(core, NUM_PENDING, 0)
        ledger[:, READ] = 0
    return likeliest(core, max_nodes + 1) if whole else 1


@inner_kernel
def rate(row: NDArray[np.int64], brought: int) -> None:
    """Decide when a source is asked next."""
    row[IDLE] = 0 if brought > 0 else row[IDLE] + 1
    if row[IDLE] < PATIENCE:
        row[SILENCE] = 0
    else:
        row[SILENCE] = min(max(2 * row[SILENCE], 1), LONGEST_SILENCE)
    row[WAIT] = row[SILENCE]


@inner_kernel
def count_trees(ledger: NDArray[np.int64]) -> int:
    """How many sources proposed something."""
    num_trees = 0
    for source in range(len(ledger)):
        num_trees += ledger[source, SIZE] > 0
    return num_trees


@inner_kernel
def settle_ratings(core: int, new_tokens: NDArray[np.int32]) -> None:
    """Count what several sources said, and decide who is asked next."""
    ledger, credit = int64_rows(core, LEDGER), int64_line(core, CREDIT)
    for source in range(len(ledger)):
        credit[source + 1] = ledger[source, RIGHT]
    if count_trees(ledger) > 1:
        for source in range(len(ledger)):
            credit[source + 1] = 0
        record_merged(core, new_tokens, credit)
    for source in range(len(ledger)):
        if ledger[source, ASKED] != 0 and ledger[source, FREE] != 0:
            rate(ledger[source], credit[source + 1])


@kernel("int64", "int32[:]", "int16[:]", "int64", "bool")
def learn(
    core: int,
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    num_new: int,
    whole: bool,
) -> None:
    """Tell the sources with tables what came of the verified tree: the first `num_new` of the new
    tokens. If they are the `whole` market, that is all.
    """
    outcome = core + WORD_BYTES * OUTCOME
    describe_outcome(outcome, tokens, parents)
    set_word(outcome, OUTCOME_NEW + 1, num_new)
    new_tokens = int32_line(outcome, OUTCOME_NEW)
    ledger = int64_rows(core, LEDGER)
    is_alone = count_trees(ledger) == 1
    for source in range(len(ledger)):
        row = ledger[source]
        row[RIGHT] = 0
        table, size = row[TABLE], row[SIZE]
        if table == 0 or row[ASKED] == 0:
            continue
        if size > 0:
            row[RIGHT] = record_tree(
                float64_block(core, STATISTICS),
                source + 1,
                int32_line(table, TOKENS)[:size],
                int16_line(table, PARENTS)[:size],
                float32_line(table, OWN_CHANCES)[:size],
                new_tokens,
                0,
                is_alone,
            )
        settle(table, outcome, new_tokens)
    if whole:
        settle_ratings(core, new_tokens)


@kernel("int64")
def learn_ratings(core: int) -> None:
    """The end of `learn`, when Python has told the other sources."""
    settle_ratings(core, int32_line(core + WORD_BYTES * OUTCOME, OUTCOME_NEW))
