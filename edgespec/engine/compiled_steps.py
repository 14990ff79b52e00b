"""Steps of the decode loop in one kernel: draft, verify, commit, learn, as in `decode.py`.

The parts are those that Python calls one by one: the market's `draft` and `learn`, the controller's
rules, `share_nodes`, `walk`, and the backend's pass by its address. Only what is between them is
said twice, and `tests/engine/test_bursts.py` holds both to the same steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.control.accounts import (
    ACCOUNT_S,
    SINCE_PLAIN,
    WAIT,
    earn,
    earn_study,
    expect_bill,
    is_short,
    judge,
    may_ask,
    may_verify,
    rest,
    settle,
    settle_unverified,
)
from edgespec.control.cost_curve import follow
from edgespec.control.node_choice import share_nodes
from edgespec.drafting.grown import OUTCOME_NEW
from edgespec.drafting.market.merging import (
    LAST,
    TREE_CHANCES,
    TREE_PARENTS,
    TREE_SOURCES,
    TREE_TOKENS,
)
from edgespec.drafting.market.step import NUM_PENDING, OUTCOME, PENDING, draft, learn
from edgespec.system.addresses import (
    call,
    float32_line,
    int16_line,
    int32_line,
    set_word,
    uint8_line,
    word,
)
from edgespec.system.clock import now
from edgespec.system.jit import entry, inner_kernel, kernel
from edgespec.verification.match import Settings, walk

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Tree = tuple[NDArray[np.int32], NDArray[np.int16], NDArray[np.int32]]

(LENGTH, POSITION, TOKENS_LEFT, ROOM, CONTEXT, MOST_NODES, NUM_TOKENS, NUM_STEPS, PLAIN_STEPS,
 DRAFTED, ACCEPTED, STATUS, NUM_STATE) = range(13)  # fmt: skip
"""Where a reply stands: committed positions, the root's position, tokens that it may still write,
tokens that drafters and `out` have room for, positions of the context, most nodes of a pass; and
what came of the steps: tokens, steps, those without drafts, nodes, and a negative status of a row
that nothing can be drawn from.
"""
MOST_S, SECONDS, DRAFT_S, PLAIN_S, PLAIN_PASS_S, NUM_SECONDS = range(6)
"""For how long steps may begin; what they took in all, and for drafts; what their tokens would have
taken in plain passes; and plain passes in all.
"""


@entry
def nothing(table: int, one: int, other: int) -> int:
    """A pass, and a commit, that a warm-up calls."""
    return 0


@inner_kernel
def draft_nodes(
    core: int,
    size: int,
    choice: tuple[Longs, Longs, Longs, Floats],
    table: Floats,
    own: Floats,
    tree: Tree,
    draft_s: float,
) -> int:
    """Fill the tree with the nodes that pay of the `size` that the market has just proposed; return
    how many they are besides the root.
    """
    parents, given = int16_line(core, TREE_PARENTS)[:size], float32_line(core, TREE_CHANCES)[:size]
    if size < 2 or own[ACCOUNT_S] <= 0.0 or not may_verify(own):
        return 0
    ends, heads, counts, path_p = choice
    ends[0] = size
    most = min(size - 1, len(table) - 1)
    share_nodes(parents, given, ends, table, draft_s, own[ACCOUNT_S], most, path_p, heads, counts)
    said = int32_line(core, TREE_TOKENS)
    for node in range(1, 1 + counts[0]):
        tree[0][node], tree[1][node] = said[node], parents[node]
    return int(counts[0])


@inner_kernel
def append_to(core: int, tokens: NDArray[np.int32]) -> None:
    """The text grew: stores read that when they are asked."""
    pending, count = int32_line(core, PENDING), word(core, NUM_PENDING)
    for token in tokens:
        pending[count] = token
        count += 1
    set_word(core, NUM_PENDING, count)
    set_word(core, LAST, int(tokens[len(tokens) - 1]))


@inner_kernel
def first_end(tokens: NDArray[np.int32], end_ids: NDArray[np.int32]) -> int:
    """How many of a step's tokens there are up to the first that ends the reply; 0: none does."""
    for place in range(len(tokens)):
        for end in end_ids:
            if tokens[place] == end:
                return place + 1
    return 0


@inner_kernel
def count_sources(
    core: int, count: int, path: NDArray[np.int32], by_source: NDArray[np.int64]
) -> None:
    """Count drafted and accepted nodes by source, int64 [2, sources]."""
    sources = uint8_line(core, TREE_SOURCES)
    for node in range(1, count + 1):
        by_source[0, sources[node]] += 1
    for place in range(1, len(path)):
        by_source[1, sources[path[place]]] += 1


@inner_kernel
def observe(
    own: Floats,
    sequence: Floats,
    table: Floats,
    num_nodes: int,
    num_tokens: int,
    was_drafted: bool,
    was_right: bool,
    draft_s: float,
) -> None:
    """`Controller.observe` for one sequence whose drafters were asked and cost next to nothing."""
    plain = table[0]
    own[SINCE_PLAIN] = own[SINCE_PLAIN] + 1.0 if num_nodes > 1 else 0.0
    was_short = is_short(own, plain)
    if was_short and num_nodes == 1 and was_drafted:
        settle_unverified(own, table, 1, was_right, draft_s)
    settle(own, table, 1, num_nodes, num_tokens, draft_s, 1)
    spent = table[num_nodes - 1]
    earn_study(own, table, spent, 0.0)
    if not was_short:
        gain_s = (num_tokens - 1) * plain - (spent - plain)
        judge(own, sequence, plain, gain_s, was_right)


@kernel(
    ("int64", "int64", "int64"),
    "int64",
    ("float32[:,:]", "int32[:,:]", "int32[:,:]"),
    ("int32[:]", "int16[:]", "int32[:]"),
    ("int64", "float64", "int64", "float64", "float64", "float32", "int64", "uint64"),
    ("int32[:,:]", "int32[:]", "int64[:]"),
    ("float64[:]", "float64[:]"),
    ("float64[:]", "float64[:]", "float64[:]", "float64[:]"),
    ("int64[:]", "int64[:]", "int64[:]", "float64[:]"),
    ("int64[:]", "float64[:]"),
    "int32[:]",
    ("int64[:]", "float64[:]", "int32[:]", "int64[:,:]"),
)
def write(
    passes: tuple[int, int, int],
    core: int,
    rows: tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]],
    tree: Tree,
    settings: Settings,
    scratch: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]],
    control: tuple[Floats, Floats],
    curve: tuple[Floats, Floats, Floats, Floats],
    choice: tuple[Longs, Longs, Longs, Floats],
    clock: tuple[Longs, Floats],
    end_ids: NDArray[np.int32],
    reply: tuple[Longs, Floats, NDArray[np.int32], Longs],
) -> None:
    """Write on until a token ends the reply, there is no more room, or the time is over.

    `passes` are a `CompiledPass`'s table and entries, `rows` its logits, their bits and those of
    the maxima, tree its tokens, parents and path; `core` is the market's table (0: nobody drafts).
    `reply` are state and seconds as above, the tokens, of which the first is the text's last, and
    nodes drafted and accepted by source.
    """
    state, seconds, out, by_source = reply
    table_at, forward, commit = passes
    tokens, parents, path = tree
    own, sequence = control
    table = curve[3]
    window, block_max, heap = scratch
    begun = start = now(clock[0], clock[1])
    while True:
        tokens[0], parents[0] = out[state[NUM_TOKENS]], -1
        length = state[LENGTH]
        room = min(state[MOST_NODES], state[TOKENS_LEFT], state[CONTEXT] - length) - 1
        size = count = 0
        if core != 0:
            if sequence[WAIT] > 0.0:
                sequence[WAIT] -= 1.0
            elif room > 0 and may_ask(own, sequence, table[0]):
                size = draft(core, room, True, True)
        drafted = now(clock[0], clock[1])
        if size > 0:
            expect_bill(own, drafted - begun, table[0])
            count = draft_nodes(core, size, choice, table, own, tree, drafted - begun)
        call(forward, table_at, 1 + count, length)
        num_path, bonus = walk(
            rows[:2], rows[2], True, tokens[: 1 + count], parents[: 1 + count], state[POSITION], 0,
            settings, window, path, block_max, heap,
        )  # fmt: skip
        if bonus < 0:
            state[STATUS] = bonus
            return
        call(commit, table_at, num_path, length)
        verified = now(clock[0], clock[1])
        new = out[state[NUM_TOKENS] + 1 : state[NUM_TOKENS] + 1 + num_path]
        for place in range(1, num_path):
            new[place - 1] = tokens[path[place]]
        new[num_path - 1] = bonus
        end = first_end(new, end_ids)
        num_kept = end if end > 0 else num_path
        pass_s, draft_s = verified - drafted, drafted - begun
        if size > 0:
            was_right = size > 1 and int32_line(core, TREE_TOKENS)[1] == new[0]
            known = int32_line(core, OUTCOME + OUTCOME_NEW)
            for place in range(num_path):
                known[place] = new[place]
            learn(core, tokens[: 1 + count], parents[: 1 + count], num_path, True)
            append_to(core, new[:num_kept])
            count_sources(core, count, path[:num_path], by_source)
            draft_s += now(clock[0], clock[1]) - verified
            follow(curve[0], curve[1], curve[2], curve[3], count, pass_s)
            observe(own, sequence, table, 1 + count, num_path, size > 1, was_right, draft_s)
        elif core != 0:
            append_to(core, new[:num_kept])
            if rest(own, 0.0):
                follow(curve[0], curve[1], curve[2], curve[3], 0, pass_s)
                earn(own, table, 1)
        state[LENGTH] += num_path
        state[POSITION] += num_path
        state[TOKENS_LEFT] -= num_path
        state[ROOM] -= num_path
        state[NUM_TOKENS] += num_kept
        state[NUM_STEPS] += 1
        state[DRAFTED] += count
        state[ACCEPTED] += num_path - 1
        if count == 0:
            state[PLAIN_STEPS] += 1
            seconds[PLAIN_PASS_S] += pass_s
        ended = now(clock[0], clock[1])
        if size > 0:
            seconds[DRAFT_S] += draft_s
        # A pass that was held up would have been with one node as well.
        seconds[PLAIN_S] += num_path * pass_s / table[count] * table[0]
        seconds[SECONDS] = ended - start
        begun = ended
        if (
            end > 0
            or state[TOKENS_LEFT] < 1
            or state[LENGTH] >= state[CONTEXT]
            or state[ROOM] < state[MOST_NODES]
            or seconds[SECONDS] >= seconds[MOST_S]
        ):
            return
