"""The repetition penalty, on a row of logits and the maxima of its tiles, in place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import TILE
from edgespec.system.jit import inner_kernel
from edgespec.verification.best_tokens import tile_maximum


@inner_kernel
def penalise(
    row: NDArray[np.float32],
    bits: NDArray[np.int32],
    maxima: NDArray[np.int32],
    window: NDArray[np.int32],
    start: int,
    stop: int,
    penalty: np.float32,
    saved: NDArray[np.int32],
) -> None:
    """Penalise each distinct token of window[start:stop] once, keeping the bits of the old logits
    and maxima in `saved` [2, window].
    """
    for i in range(start, stop):
        token = window[i]
        if token < 0 or token >= len(row):
            continue
        tile = token // TILE
        saved[0, i] = bits[token]
        saved[1, i] = maxima[tile]
        seen = False
        for j in range(start, i):
            if window[j] == token:
                seen = True
                break
        if not seen:
            logit = row[token]
            row[token] = logit / penalty if logit > 0.0 else logit * penalty
            maxima[tile] = tile_maximum(bits, tile)


@inner_kernel
def unpenalise(
    bits: NDArray[np.int32],
    maxima: NDArray[np.int32],
    window: NDArray[np.int32],
    start: int,
    stop: int,
    saved: NDArray[np.int32],
) -> None:
    """Undo `penalise`, backwards, so that what was saved repeatedly ends with its first value."""
    for i in range(stop - 1, start - 1, -1):
        token = window[i]
        if 0 <= token < len(bits):
            bits[token] = saved[0, i]
            maxima[token // TILE] = saved[1, i]
