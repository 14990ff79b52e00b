"""Ridge regression from sums: the rows it is fitted to are never held together.

What an exit sees, x, is to become what the last layer leaves, y: A minimises the mean of
|y - x - x A|^2 + ridge |A|^2, so that a strong ridge leaves the exit as it is. With X the rows, A
solves (X'X / n + ridge) A = X'(Y - X) / n; both sums take d x d numbers whatever n is, and one
eigendecomposition serves every strength.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""As parts of the mean square of the inputs, which is one."""
SOLVER_MATRICES = 6
"""f64 [d, d] that solving holds at a time, the sums left out."""


class Sums:
    """X'X and X'(Y - X) of one exit, f64 [d, d] each."""

    def __init__(self, dim: int) -> None:
        self._inputs = np.zeros((dim, dim), np.float64)
        self._outputs = np.zeros((dim, dim), np.float64)
        self.num_rows = 0

    def add(self, inputs: NDArray[np.float32], outputs: NDArray[np.float32]) -> None:
        """Count rows [n, d]."""
        self._inputs += inputs.T @ inputs
        self._outputs += inputs.T @ (outputs - inputs)
        self.num_rows += len(inputs)

    def solutions(self) -> Iterator[tuple[float, NDArray[np.float64]]]:
        """Each strength, and I + A [d, d] with it: x (I + A) is near y."""
        count = max(self.num_rows, 1)
        values, vectors = np.linalg.eigh(self._inputs / count)
        turned = vectors.T @ (self._outputs / count)
        for strength in STRENGTHS:
            scale = 1.0 / (np.maximum(values, 0.0) + strength)
            matrix = vectors @ (scale[:, None] * turned)
            matrix[np.diag_indices_from(matrix)] += 1.0
            yield strength, matrix


def normalised(streams: NDArray[np.float32], epsilon: float) -> NDArray[np.float32]:
    """Rows [n, d] as a norm without gain leaves them: of mean square one."""
    mean = np.square(streams).mean(axis=1, keepdims=True)
    return np.asarray(streams / np.sqrt(mean + np.float32(epsilon)), np.float32)
