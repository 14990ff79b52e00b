"""The target's distribution of the next token: the candidates that plain sampling draws from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import kernel
from edgespec.verification.best_tokens import (
    NO_FINITE_MAXIMUM,
    NOT_A_NUMBER,
    pack,
    packed_token,
    push_bounded,
    sort_descending,
    sort_key,
)
from edgespec.verification.match import bad_row
from edgespec.verification.sampling import SamplingParams


@kernel(
    "float32[:]",
    "int32[:]",
    "float64",
    "float64",
    "float64",
    "int64[:]",
    "float64[:]",
    result="int64",
)
def fill_candidates(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    temperature: float,
    top_p: float,
    min_p: float,
    tokens: NDArray[np.int64],
    probs: NDArray[np.float64],
) -> int:
    """Fill `tokens` and `probs`, both as long as top-k allows, from a penalised row [vocab] f32 and
    `bits`, the same memory; return how many candidates there are, or a negative status.
    """
    top = -math.inf
    for token in range(len(row)):
        if math.isnan(row[token]):
            return NOT_A_NUMBER
        top = max(top, np.float64(row[token]))
    if math.isinf(top):
        return NO_FINITE_MAXIMUM
    whole_row = len(tokens) == len(row)
    total = 0.0
    floor = 0.0
    if whole_row:  # what min-p or top-p cuts away for certain need not be sorted
        for token in range(len(row)):
            total += math.exp(np.float64(row[token]) - top)
        floor = max(min_p, (1.0 - top_p - 1e-9) * total / len(row))
    size = 0
    for token in range(len(row)):
        if floor == 0.0 or math.exp(np.float64(row[token]) - top) >= floor:
            size = push_bounded(tokens, size, len(tokens), pack(sort_key(bits[token]), token))
    if not whole_row or top_p < 1.0:
        sort_descending(tokens, size)
    for i in range(size):
        tokens[i] = packed_token(tokens[i])
        probs[i] = math.exp(np.float64(row[tokens[i]]) - top)
        if not whole_row:
            total += probs[i]
    mass = 0.0
    num_kept = 0
    while num_kept < size and probs[num_kept] >= min_p and (top_p == 1.0 or mass < top_p * total):
        mass += probs[num_kept]
        num_kept += 1
    num_kept = max(num_kept, 1)
    total = 0.0
    for i in range(num_kept):
        probs[i] = math.exp((np.float64(row[tokens[i]]) - top) / temperature)
        total += probs[i]
    for i in range(num_kept):
        probs[i] /= total
    return num_kept


def target_distribution(
    row: NDArray[np.float32],
    recent: Sequence[int] | NDArray[np.int32],
    params: SamplingParams,
    position: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that may follow the one at `position` and their probabilities, which sum to 1.

    row [vocab] f32, left as it is; `recent` as in `Verifier.verify`. Returns int64 [n] and f64 [n],
    n <= top_k. Raises BackendError when the row holds NaN or has no finite maximum.
    """
    row = np.array(row, np.float32)
    if params.repetition_penalty != 1.0 and params.repetition_window:
        window = np.unique(np.asarray(recent[-params.repetition_window :], np.int64))
        window = window[(window >= 0) & (window < len(row))]
        penalty = np.float32(params.repetition_penalty)
        logits = row[window]
        row[window] = np.where(logits > 0, logits / penalty, logits * penalty)
    limit = 1 if params.greedy else min(params.top_k or len(row), len(row))
    tokens, probs = np.empty(limit, np.int64), np.empty(limit, np.float64)
    size = fill_candidates(
        row,
        row.view(np.int32),
        float(params.temperature) or 1.0,
        float(params.top_p),
        float(params.min_p),
        tokens,
        probs,
    )
    if size < 0:
        raise bad_row(position, size)
    return tokens[:size], probs[:size]
