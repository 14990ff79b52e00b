"""Rows of a program: norms, products, and other stages over one table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.stages import heads, multiply, norm
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.weights import Weights
from edgespec.models.layers import Matrix, Norm
from edgespec.system.addresses import Entry, address_of

Stage = dict[int, int]
"""Operands by column."""
Stages = list[Stage]
Place = tuple[int, int]
"""Where the first row is, and bytes from one row to the next."""
Joining = dict[str, int]
"""What the next norm is told of rows that join the stream with it; nothing where none do."""


class StageMaker:
    """Makes stages of a model's weights; inputs of products are named by where their entries of the
    table start.
    """

    def __init__(self, weights: Weights, base: NDArray[np.int64]) -> None:
        self.weights, self._base = weights, base
        self.isa = isa.chosen()

    def stage(self, entry: Entry, operands: Stage, where: int = 0) -> Stage:
        """A stage over the table at an address, or the base."""
        table_at = where or int(self._base.ctypes.data)
        return {table.ENTRY: address_of(entry), table.TABLE: table_at, **operands}

    def place(self, entry: int) -> Place:
        """The rows whose address and stride are two entries of the table."""
        where, stride = self._base[entry : entry + 2]
        return int(where), int(stride)

    def gain(self, own: Norm | None) -> int:
        """Where a norm's gain is, 0 without a norm."""
        return 0 if own is None else self.weights.vector(own.tensor, own.width)

    def operation(self, name: str) -> int:
        """Where an activation is."""
        return isa.activation_address(self.isa, name)

    def norm(self, **operands: int) -> Stage:
        columns = {
            "joining": norm.JOINING,
            "joining_stride": norm.JOINING_STRIDE,
            "joining_gain": norm.JOINING_GAIN,
            "joining_factor": norm.JOINING_FACTOR,
            "stream_factor": norm.STREAM_FACTOR,
            "gain": norm.GAIN,
            "is_normed": norm.IS_NORMED,
            "source": norm.SOURCE,
            "source_stride": norm.SOURCE_STRIDE,
        }
        row = {norm.STREAM_FACTOR: norm.ONE_BITS}
        row |= {columns[name]: value for name, value in operands.items()}
        return self.stage(norm.norm, row)

    def pre_norm(self, own: Norm | None, joining: Joining | None = None) -> Stage:
        """The norm before a part; without one, NORMED is the stream as it is."""
        return self.norm(gain=self.gain(own), is_normed=1, **(joining or {}))

    def product(self, matrix: Matrix, source: int, place: Place, offset: int = 0) -> Stage:
        """A product into rows, some bytes into each."""
        operands = self._product(matrix, source) | {
            multiply.OUTPUT: place[0] + offset,
            multiply.OUTPUT_STRIDE: place[1],
        }
        return self.stage(multiply.multiply, operands)

    def input(self, matrix: Matrix, source: int, into: int) -> Stage:
        """A product that becomes another one's input."""
        size = matrix.rows, 0
        return self.heads(matrix, source, self.place(into), 1, size, into=into)

    def heads(
        self, matrix: Matrix, source: int, place: Place, count: int, size: tuple[int, int],
        *, head_bytes: int = 0, into: int = 0,
    ) -> Stage:  # fmt: skip
        """Every head's product; `size` is that of a head's matrix, of no columns where all heads
        read the same.
        """
        rows, width = size
        operands = {
            heads.MATRIX: self.weights.place(matrix),
            heads.INPUT: source,
            heads.WIDTH: width,
            heads.HEADS: count,
            heads.OUTPUT: place[0],
            heads.OUTPUT_STRIDE: place[1],
            heads.ROWS: rows,
            heads.HEAD_BYTES: head_bytes or 4 * rows,
            heads.INTO: into,
        }
        return self.stage(heads.heads, operands)

    def output(
        self,
        matrix: Matrix,
        rows: int,
        post: Norm | None,
        factor: float,
        scale: str = "",
        apart: bool = False,
    ) -> tuple[Stage, Joining]:
        """The product at the end of a part: into the stream, or where it must be changed before it
        joins that or stay apart, into BRANCH; and what the next norm is told of that.
        """
        plain = post is None and factor == 1.0 and not scale and not apart
        where, stride = self.place(table.STREAM if plain else table.BRANCH)
        operands = self._product(matrix, rows) | {
            multiply.OUTPUT: where,
            multiply.OUTPUT_STRIDE: stride,
            multiply.ACCUMULATE: int(plain),
        }
        stage = self.stage(multiply.multiply, operands)
        if plain:
            return stage, {}
        return stage, {
            "joining": where,
            "joining_stride": stride,
            "joining_gain": self.gain(post),
            "joining_factor": float_bits(factor),
        }

    def _product(self, matrix: Matrix, source: int) -> Stage:
        return {
            multiply.MATRIX: self.weights.place(matrix),
            multiply.INPUT: source,
            multiply.BIAS: self.weights.bias(matrix),
        }
