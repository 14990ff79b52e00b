"""Rows of logits that look for trouble: ties, flat rows, minus infinity, spikes, both zeros."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

KINDS = ("normal", "ties", "flat", "minus infinity", "spike", "zeros", "ascending")


def make_rows(kind: str, num_rows: int, vocab_size: int, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((num_rows, vocab_size)) * 3
    if kind == "ties":
        rows = rng.integers(-2, 3, rows.shape)
    elif kind == "flat":
        rows = np.full(rows.shape, rng.standard_normal())
    elif kind == "minus infinity":
        rows[rng.random(rows.shape) < 0.7] = -np.inf
        rows[:, rng.integers(vocab_size)] = 0.5
    elif kind == "spike":
        rows[:, rng.integers(vocab_size)] = 80.0
    elif kind == "zeros":
        rows = np.where(rng.random(rows.shape) < 0.5, 0.0, -0.0)
    elif kind == "ascending":
        rows = np.sort(rows, axis=1)
    return rows.astype(np.float32)


def maxima_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest of every 16 logits, [rows, ceil(vocab / 16)], as a backend may give them."""
    starts = range(0, rows.shape[1], 16)
    return np.stack([rows[:, start : start + 16].max(axis=1) for start in starts], axis=1)
