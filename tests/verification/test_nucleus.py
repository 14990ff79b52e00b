"""Quick sums of probabilities are as near to the exact ones as is claimed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from rows_of_logits import KINDS, make_rows, maxima_of

from edgespec.system.jit import kernel
from edgespec.verification.best_tokens import best_of_row, sort_key
from edgespec.verification.nucleus import ONE, share, share_above, share_sum, slack


@kernel
def _share(distance: np.float32) -> int:
    return int(share(distance))


@kernel
def _sum(bits: NDArray[np.int32], top: np.float32) -> tuple[int, float]:
    total = share_sum(bits, top)
    return total, slack(total, len(bits))


@kernel
def _above(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    maxima: NDArray[np.int32],
    block_max: NDArray[np.int32],
    token: int,
) -> tuple[int, float]:
    top = row[best_of_row(bits, maxima, block_max)]
    total = share_above(row, block_max, sort_key(bits[token]), top, token)
    return total, slack(total, len(row))


def test_a_share_is_a_power_of_e() -> None:
    distances = np.concatenate([np.linspace(0, 25, 5_000), [0.0, 700.0, np.inf]]).astype(np.float32)
    for distance in distances:
        exact = ONE * math.exp(-float(distance))
        assert abs(_share(distance) - exact) <= exact / 9_000 + 1


@pytest.mark.parametrize("vocab_size", [1, 17, 1_500])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_differ_by_less_than_their_slack(kind: str, vocab_size: int) -> None:
    row = make_rows(kind, 1, vocab_size, 2)[0]
    bits, maxima = row.view(np.int32), maxima_of(row[None])[0].view(np.int32)
    block_max = np.zeros(-(-len(maxima) // 32), np.int32)
    weights = ONE * np.exp(row.astype(np.float64) - float(row.max()))
    total, wrong = _sum(bits, row.max())
    assert abs(total - weights.sum()) < wrong
    order = np.argsort(-row, kind="stable")
    for place in {0, vocab_size // 3, vocab_size - 1}:
        above, wrong = _above(row, bits, maxima, block_max, int(order[place]))
        assert abs(above - weights[order[:place]].sum()) < wrong
