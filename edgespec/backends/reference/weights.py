"""A model's tensors as the parts of its description: matrices, norms, vectors, all f32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Progress
from edgespec.backends.reference.arithmetic import Vector, multiply, rms_norm
from edgespec.backends.reference.rotation import (
    factors_name,
    position_factor,
    rope_frequencies,
    rotate,
)
from edgespec.models.file import ModelFile
from edgespec.models.layers import Matrix, Norm, PositionScale, Rope


class Weights:
    """What layers compute with, in a context of so many positions."""

    def __init__(self, file: ModelFile, context_length: int, progress: Progress | None) -> None:
        self._context_length = context_length
        self._epsilon = file.spec.norm_epsilon
        self._tensors: dict[str, Vector] = {}
        self._cut: dict[Matrix, Vector] = {}
        self._frequencies: dict[Rope, NDArray[np.float64]] = {}
        left_out = {*file.spec.unused, file.spec.token_ids}
        names = [name for name in file.tensors if name not in left_out]
        for done, name in enumerate(names, 1):
            self._tensors[name] = file.matrix_f32(name)
            if progress is not None:
                progress(done, len(names))

    def vector(self, name: str) -> Vector:
        """A tensor in one row."""
        row: Vector = self._tensors[name].reshape(-1)
        return row

    def table(self, name: str) -> Vector:
        """A tensor as it is."""
        return self._tensors[name]

    def matrix(self, part: Matrix, expert: int = 0) -> Vector:
        """[rows, columns] of one expert."""
        if part not in self._cut:
            self._cut[part] = self._rows(part, self._tensors[part.tensor])
        rows: Vector = self._cut[part][expert]
        return rows

    def project(self, part: Matrix, vector: Vector, expert: int = 0) -> Vector:
        """Matrix x vector, plus the bias if there is one."""
        product = multiply(self.matrix(part, expert), vector)
        if not part.bias:
            return product
        bias = self._rows(part, self._tensors[part.bias], 1)
        biased: Vector = product + bias[expert].reshape(-1)
        return biased

    @staticmethod
    def _rows(part: Matrix, tensor: Vector, columns: int = 0) -> Vector:
        """The rows that belong to a matrix, [experts, rows, columns]."""
        all_rows = tensor.reshape(part.experts, -1, columns or part.columns)
        if not part.stride:
            return all_rows[:, part.first : part.first + part.rows]
        runs = np.arange(part.rows) // part.run
        chosen = part.first + runs * part.stride + np.arange(part.rows) % part.run
        return np.ascontiguousarray(all_rows[:, chosen])

    def norm(self, part: Norm | None, values: Vector) -> Vector:
        """Values [..., width], normed if there is a norm; all of them together if it is so wide."""
        if part is None:
            return values
        runs: Vector = values.reshape(-1, part.groups, part.width)
        gain: Vector = np.ones(1, np.float32)
        if part.tensor:
            gain = self._tensors[part.tensor].reshape(part.groups, part.width)
        normed: Vector = rms_norm(runs, gain, self._epsilon).reshape(values.shape)
        return normed

    def turn(self, rope: Rope | None, heads: Vector, position: int) -> Vector:
        """Heads [heads, head_dim], rotated as their position asks."""
        if rope is None:
            return heads
        if rope not in self._frequencies:
            factors = self._tensors.get(factors_name(rope, self._context_length))
            self._frequencies[rope] = rope_frequencies(rope, factors)
        angles = position * self._frequencies[rope]
        return rotate(heads, angles, rope.layout, rope.magnitude)

    @property
    def epsilon(self) -> float:
        """Of norms, and of what is brought to length one."""
        return self._epsilon

    @staticmethod
    def scaled(scale: PositionScale | None, queries: Vector, position: int) -> Vector:
        """Queries, longer where their position asks for it."""
        return queries * position_factor(scale, position)
