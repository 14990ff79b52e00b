"""Chains that a model drafts: drawing a token, the tree they make, what is learnt, how long to be.

A draft is drawn from a row of logits as the target will draw its token. The noise is the target's
own (`verification/noise.py`), so that two models that think alike draw alike. Tokens are cut as in
`verification/rows.py`, but for two things that would cost more than they bring: as many candidates
as the heap holds at most, and no penalty.

Drafts are of a kind by how clearly they won over the runner-up. The table of rates
(`drafting/rates.py`) has rows for drafts without noise, for drafts with noise, for the runners-up
of both, and one for all drafts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.rates import RATE, learn
from edgespec.system.jit import inner_kernel, kernel
from edgespec.verification.best_tokens import best_of_row, packed_token, select_top
from edgespec.verification.noise import gumbel, position_key

NUM_MARGINS = 8
"""Kinds of drafts by how clearly they won."""
SECOND = 2 * NUM_MARGINS
"""From a draft's kind to its runner-up's."""
MEAN = 2 * SECOND
"""The row of all drafts."""
NOBODY = -1
_LEAST_SECOND = 0.04
"""Runners-up less likely than this are not proposed."""


def first_rates(mean: float = 0.7) -> list[float]:
    """How often drafts and runners-up of each kind are right, and drafts in the `mean`, until more
    is known.
    """
    drafts = [0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.97]
    seconds = [0.3, 0.25, 0.2, 0.15, 0.1, 0.06, 0.03, 0.01]
    return [*drafts, *drafts, *seconds, *seconds, mean]


@inner_kernel
def _named(ids: NDArray[np.int32], token: int) -> int:
    """The target's id of a row's token."""
    return token if len(ids) == 0 else int(ids[token])


@kernel(
    "float32[:]",
    "int32[:]",
    "int32[:]",
    ("float64", "int64", "float64", "float64", "uint64"),
    "int64",
    "int32[:]",
    "int64[:]",
    "int32[:]",
    "int64[:]",
    result="float64",
)
def draw_two(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    maxima: NDArray[np.int32],
    options: tuple[float, int, float, float, np.uint64],
    position: int,
    block_max: NDArray[np.int32],
    heap: NDArray[np.int64],
    ids: NDArray[np.int32],
    found: NDArray[np.int64],
) -> float:
    """Fill `found` [2] with the draft for `position` and the runner-up (or NOBODY); return by how
    much the draft's logit, with noise, is above the other's: -1 for a row that nothing can be drawn
    from.

    `options` are temperature, top-k, top-p, min-p and seed; row, bits, maxima and block_max are as
    in `verification/rows.py`; heap int64 [most candidates]; `ids` are the target's for the row's
    tokens, none where they are the same.
    """
    temperature, top_k, top_p, min_p, seed = options
    found[0], found[1] = best_of_row(bits, maxima, block_max), NOBODY
    if found[0] < 0:
        return -1.0
    found[0] = _named(ids, found[0])
    limit = len(heap) if top_k <= 0 else min(top_k, len(heap))
    if temperature == 0.0:
        limit = 2
    size = select_top(bits, maxima, block_max, min(limit, len(row)), heap)
    top = np.float64(row[packed_token(heap[0])])
    if temperature == 0.0:
        if size < 2:
            return 0.0
        runner_up = packed_token(heap[1])
        found[1] = _named(ids, runner_up)
        return top - np.float64(row[runner_up])
    total = 0.0
    for i in range(size):
        total += math.exp(np.float64(row[packed_token(heap[i])]) - top)
    key, mass, best, second = position_key(seed, position), 0.0, -np.inf, -np.inf
    for i in range(size):
        token = packed_token(heap[i])
        logit = np.float64(row[token])
        share = math.exp(logit - top)
        if i > 0 and (mass >= top_p * total or share < min_p):
            break
        mass += share
        token = _named(ids, token)
        score = logit / temperature + gumbel(key, token)
        if score > best:
            found[1], second = (found[0], best) if best > -np.inf else (NOBODY, second)
            found[0], best = token, score
        elif score > second:
            found[1], second = token, score
    if second == -np.inf:  # nobody else was left: as clear as the cut was
        return math.log(mass / max(total - mass, 1e-6 * total))
    return best - second


@kernel(
    "float64[:,:]",
    "int64[:]",
    "int64[:,:]",
    "int64",
    "int64",
    "int32[:]",
    "int16[:]",
    "float32[:]",
    result="int64",
)
def lay_out(
    rates: NDArray[np.float64],
    kinds: NDArray[np.int64],
    drafts: NDArray[np.int64],
    num_drafts: int,
    most: int,
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    p_accept: NDArray[np.float32],
) -> int:
    """Fill the tree of a chain [n, 2] of drafts and runners-up below tokens[0], likeliest path
    first; return its number of nodes, at most `most`.
    """
    size, depth, parent, chance = 1, 0, 0, 1.0
    waiting, waiting_parent, waiting_p, waiting_path = NOBODY, 0, 0.0, 0.0
    looked_at = 0  # drafts whose runners-up waited
    while size < most and (depth < num_drafts or waiting != NOBODY):
        likely = rates[kinds[depth], RATE] if depth < num_drafts else 0.0
        if depth < num_drafts and looked_at <= depth and drafts[depth, 1] != NOBODY:
            second = rates[kinds[depth] + SECOND, RATE]
            if chance * second > max(waiting_path, _LEAST_SECOND):
                waiting, waiting_parent = drafts[depth, 1], parent
                waiting_p, waiting_path, looked_at = second, chance * second, depth + 1
        if chance * likely >= waiting_path:
            tokens[size], parents[size], p_accept[size] = drafts[depth, 0], parent, likely
            parent, chance, depth = size, chance * likely, depth + 1
        else:
            tokens[size], parents[size] = waiting, waiting_parent
            p_accept[size], waiting, waiting_path = waiting_p, NOBODY, 0.0
        size += 1
    return size


@kernel("float64[:,:]", "int64[:]", "int64[:,:]", "int64", "int32[:]")
def learn_chain(
    rates: NDArray[np.float64],
    kinds: NDArray[np.int64],
    drafts: NDArray[np.int64],
    num_drafts: int,
    new_tokens: NDArray[np.int32],
) -> None:
    """Count drafts and runners-up [n, 2] whose parents were right."""
    for place in range(min(num_drafts, len(new_tokens))):
        right = drafts[place, 0] == new_tokens[place]
        learn(rates, kinds[place], 1.0, right)
        learn(rates, kinds[place] + SECOND, 1.0, drafts[place, 1] == new_tokens[place])
        learn(rates, MEAN, 1.0, right)
        if not right:
            return


@kernel("float64[:,:,:]", "int64[:]", "int64", "int64")
def learn_shadows(
    tables: NDArray[np.float64], shadows: NDArray[np.int64], num_shadows: int, token: int
) -> None:
    """Count what the first exits, each with a table of rates [exits, kinds, 4], would have said."""
    for place in range(num_shadows):
        learn(tables[place], MEAN, 1.0, shadows[place] == token)


@kernel("float64[:]", "float64", "float64", "int64", result="float64")
def best_length(prices: NDArray[np.float64], mean: float, step_s: float, longest: int) -> float:
    """Seconds a token takes at the best length of chain, if each draft is right with the same
    probability: DEL's tokens per layer, in seconds ("DEL: Context-Aware Dynamic Exit Layer for
    Efficient Self-Speculative Decoding", section 3.2).

    prices[n - 1] are the seconds of a pass over n nodes, step_s those of a draft. That an early
    exit did part of the pass is no gain: the chain's last token has to catch up.
    """
    expected, path = 1.0, 1.0
    best = float(prices[0])
    for length in range(1, min(longest, len(prices) - 1) + 1):
        path *= mean
        expected += path
        best = min(best, float(prices[length] + length * step_s) / expected)
    return best
