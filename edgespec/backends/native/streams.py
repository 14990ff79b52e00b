"""Several residual streams (`kernels/stages/streams.py`): their buffers, and stages of layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.stages import streams
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.stage_maker import Place, Stage, StageMaker
from edgespec.memory.plan.native_sizes import modes_width
from edgespec.models.layers import AltUp, Laurel, Norm
from edgespec.models.spec import Streams


class ResidualStreams:
    """The streams of a pass' rows beside the first, and what all are predicted to be."""

    def __init__(self, spec: Streams, dim: int, num_rows: int) -> None:
        self._spec, self._dim = spec, dim
        self._others = np.zeros((num_rows, (spec.count - 1) * dim), np.float32)
        self._predicted = np.zeros((num_rows, spec.count * dim), np.float32)
        self._modes = np.zeros((num_rows, modes_width(spec.count)), np.float32)

    @property
    def size_bytes(self) -> int:
        return self._others.nbytes + self._predicted.nbytes + self._modes.nbytes

    def begin(self, maker: StageMaker) -> Iterator[Stage]:
        """What makes the other streams of the first, which is in NORMED as it is."""
        place = self._others.ctypes.data, self._others.strides[0]
        count, size = self._spec.count - 1, (self._dim, 0)
        yield maker.heads(self._spec.projection, table.NORMED, place, count, size)
        yield maker.stage(streams.begin, self._operands())

    def end(self, maker: StageMaker) -> Iterator[Stage]:
        """What makes one stream of all, in place of the first."""
        yield maker.stage(streams.take_others, self._operands())
        place, count = maker.place(table.UP), self._spec.count - 1
        size = self._dim, self._dim
        yield maker.heads(self._spec.unembedding, table.GATED, place, count, size)
        yield maker.stage(streams.end, self._operands())

    def predict(self, own: AltUp, maker: StageMaker) -> Iterator[Stage]:
        """What stands before a layer, once NORMED holds what its router reads."""
        yield self._route(own, maker)
        yield maker.stage(streams.predict, self._mixing(maker, own.predict.tensor))

    def correct(self, own: AltUp, maker: StageMaker) -> Iterator[Stage]:
        """What stands behind it; NORMED is the first stream, scaled."""
        yield self._route(own, maker)
        scale = {streams.CORRECT_SCALE: maker.weights.vector(own.correct_scale)}
        operands = self._mixing(maker, own.correct.tensor) | scale
        yield maker.stage(streams.correct, operands)

    def add_to_others(self, rows: Place, norm: Norm, maker: StageMaker) -> Stage:
        """Rows that join the other streams, normed."""
        return maker.stage(streams.add_to_others, self._added(rows, norm, maker))

    def laurel(self, own: Laurel, maker: StageMaker) -> Iterator[Stage]:
        """What joins the first stream beside the mixer, which reads NORMED too."""
        rows = maker.place(table.BRANCH)
        yield maker.input(own.left, table.NORMED, table.GATED)
        yield maker.product(own.right, table.GATED, rows)
        yield maker.stage(streams.add_to_first, self._added(rows, own.norm, maker))

    def _route(self, own: AltUp, maker: StageMaker) -> Stage:
        place = self._modes.ctypes.data, self._modes.strides[0]
        return maker.product(own.router, table.NORMED, place)

    def _mixing(self, maker: StageMaker, coefficients: str) -> dict[int, int]:
        return self._operands() | {
            streams.MODES: self._modes.ctypes.data,
            streams.MODES_STRIDE: self._modes.strides[0],
            streams.MODES_FACTOR: float_bits(1.0 / self._dim),
            streams.TANH: maker.operation("tanh"),
            streams.COEFFICIENTS: maker.weights.vector(coefficients),
        }

    def _added(self, rows: Place, norm: Norm, maker: StageMaker) -> dict[int, int]:
        return self._operands() | {
            streams.ADDED: rows[0],
            streams.ADDED_STRIDE: rows[1],
            streams.ADDED_GAIN: maker.weights.vector(norm.tensor),
        }

    def _operands(self) -> dict[int, int]:
        return {
            streams.STREAMS: self._spec.count,
            streams.OTHERS: self._others.ctypes.data,
            streams.OTHERS_STRIDE: self._others.strides[0],
            streams.PREDICTED: self._predicted.ctypes.data,
            streams.PREDICTED_STRIDE: self._predicted.strides[0],
        }
