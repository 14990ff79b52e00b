"""What a model leaves for a draft head, and what a head takes: buffers and stages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.stages import joint, multiply, norm
from edgespec.backends.native.weights import Weights
from edgespec.errors import BackendError
from edgespec.models.layers import Matrix
from edgespec.models.spec import HeadInput, ModelSpec
from edgespec.system.addresses import Entry

Stage = tuple[Entry, dict[int, int]]
Place = tuple[int, int]
"""Where the first row is, and bytes from one row to the next."""


class LeftStreams:
    """The streams of a pass before some layers, f32 [rows, taps * dim]; what the last norm makes of
    the stream where a tap is the number of layers and `normed`.
    """

    def __init__(
        self, spec: ModelSpec, taps: Sequence[int], num_rows: int, *, normed: bool = True
    ) -> None:
        self._spec, self._taps, self._normed = spec, tuple(taps), normed
        self.rows = np.zeros((num_rows, len(taps) * spec.state_dim), np.float32)

    def stages(self, layer: int, weights: Weights) -> list[Stage]:
        """What leaves the stream before a layer."""
        spec, width = self._spec, 4 * self._spec.dim
        made = None if spec.head_input is None else spec.head_input.state_projection
        if made is not None:
            return self._made(made, weights) if layer in self._taps else []
        gain = weights.vector(spec.last_norm) if self._normed and layer == spec.num_layers else 0
        return [
            (
                joint.leave,
                {
                    joint.LEFT: self.rows.ctypes.data + place * width,
                    joint.LEFT_STRIDE: self.rows.strides[0],
                    joint.LEFT_GAIN: gain,
                },
            )
            for place, tap in enumerate(self._taps)
            if tap == layer
        ]

    def _made(self, matrix: Matrix, weights: Weights) -> list[Stage]:
        """What makes states of the normed stream."""
        gain = weights.vector(self._spec.last_norm)
        return [
            (norm.norm, {norm.STREAM_FACTOR: norm.ONE_BITS, norm.GAIN: gain}),
            _product(matrix, table.NORMED, weights, _place(self.rows)),
        ]


def _place(rows: NDArray[np.float32]) -> Place:
    return rows.ctypes.data, rows.strides[0]


def _product(matrix: Matrix, source: int, weights: Weights, rows: Place) -> Stage:
    """A product into these rows."""
    operands = {
        multiply.MATRIX: weights.place(matrix),
        multiply.INPUT: source,
        multiply.OUTPUT: rows[0],
        multiply.OUTPUT_STRIDE: rows[1],
        multiply.BIAS: weights.bias(matrix),
    }
    return multiply.multiply, operands


class HeadInputs:
    """The states that a head's pass goes on from, f32 [rows, width]; and beside them embeddings of
    its tokens, where nothing but a projection makes the stream of both.
    """

    def __init__(self, spec: ModelSpec, part: HeadInput, num_rows: int) -> None:
        self._part, self._dim = part, spec.state_dim
        is_beside = part.token_norm is None
        self.rows = np.zeros((num_rows, (1 + is_beside) * self._dim), np.float32)
        """Tokens and states, or states."""
        self.tokens = np.zeros((num_rows, self._dim), np.float32) if is_beside else None
        """Where embeddings of tokens are written, to be taken with the states."""
        self.states = self.rows[:, -self._dim :]
        self._source: NDArray[np.float32] = self.states
        """What is to be fused, kept while it is read."""

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes + (0 if self.tokens is None else self.tokens.nbytes)

    def take(self, states: NDArray[np.float32] | None, num_rows: int) -> bool:
        """Take the states of a pass [n, width]: the head's own, or what a model left, and then they
        are to be fused first: True.
        """
        fused = self._part.fusion
        widths = {self._dim} if fused is None else {self._dim, fused.columns}
        if states is None or len(states) != num_rows or states.shape[1] not in widths:
            raise BackendError(
                f"a pass of a draft head needs a state for each of its {num_rows} tokens, "
                f"{' or '.join(map(str, sorted(widths)))} wide"
            )
        if self.tokens is not None:
            self.rows[:num_rows, : self._dim] = self.tokens[:num_rows]
        if states.shape[1] == self._dim:
            self.states[:num_rows] = states
            return False
        self._source = np.ascontiguousarray(states, np.float32)
        return True

    def point(self, stage: NDArray[np.int64]) -> None:
        """Let the first stage of fusing read what was taken."""
        stage[joint.SOURCE] = self._source.ctypes.data
        stage[joint.SOURCE_STRIDE] = self._source.strides[0]

    def fusing(self, weights: Weights) -> list[Stage]:
        """What makes states of what a model left."""
        part = self._part
        if part.fusion is None:
            return []
        normed = part.fusion_norm
        return [
            (
                joint.gather,
                {
                    joint.WIDTH: part.fusion.columns,
                    joint.GAIN: weights.vector(normed.tensor) if normed else 0,
                },
            ),
            _product(part.fusion, table.ATTENDED, weights, _place(self.states)),
        ]

    def pairing(self, weights: Weights, stream: Place) -> list[Stage]:
        """What makes the stream of tokens and states."""
        part = self._part
        if part.token_norm is None or part.state_norm is None:
            assert part.projection is not None
            where, stride = _place(self.rows)
            source = {joint.SOURCE: where, joint.SOURCE_STRIDE: stride}
            return [
                (joint.gather, source | {joint.WIDTH: part.projection.columns}),
                _product(part.projection, table.ATTENDED, weights, stream),
            ]
        kept = joint.NORMED_STATE if part.normed_stream else joint.STATE
        stages: list[Stage] = [
            (
                joint.pair,
                {
                    joint.STATES: self.states.ctypes.data,
                    joint.STATES_STRIDE: self.states.strides[0],
                    joint.TOKEN_GAIN: weights.vector(part.token_norm.tensor),
                    joint.STATE_GAIN: weights.vector(part.state_norm.tensor),
                    joint.KEPT: joint.NOTHING if part.projection else kept,
                },
            )
        ]
        if part.projection is not None:
            stages.append(_product(part.projection, table.NORMED, weights, stream))
        return stages
