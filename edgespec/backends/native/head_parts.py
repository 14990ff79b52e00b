"""What a model leaves for a draft head, and what a head takes: buffers and stages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.stages import joint, multiply
from edgespec.backends.native.weights import Weights
from edgespec.errors import BackendError
from edgespec.models.spec import HeadInput, ModelSpec
from edgespec.system.addresses import Entry

Stage = tuple[Entry, dict[int, int]]


class LeftStreams:
    """The streams of a pass before some layers, f32 [rows, taps * dim]; what the last norm makes of
    the stream where a tap is the number of layers and `normed`.
    """

    def __init__(
        self, spec: ModelSpec, taps: Sequence[int], num_rows: int, *, normed: bool = True
    ) -> None:
        self._spec, self._taps, self._normed = spec, tuple(taps), normed
        self.rows = np.zeros((num_rows, len(taps) * spec.dim), np.float32)

    def stages(self, layer: int, weights: Weights) -> list[Stage]:
        """What leaves the stream before a layer."""
        spec, width = self._spec, 4 * self._spec.dim
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


class HeadInputs:
    """The states that a head's pass goes on from, f32 [rows, dim]."""

    def __init__(self, spec: ModelSpec, part: HeadInput, num_rows: int) -> None:
        self._part, self._dim = part, spec.dim
        self.states = np.zeros((num_rows, spec.dim), np.float32)
        self._source: NDArray[np.float32] = self.states
        """What is to be fused, kept while it is read."""

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
        norm = part.fusion_norm
        return [
            (
                joint.gather,
                {
                    joint.WIDTH: part.fusion.columns,
                    joint.GAIN: weights.vector(norm.tensor) if norm else 0,
                },
            ),
            (
                multiply.multiply,
                {
                    multiply.MATRIX: weights.place(part.fusion),
                    multiply.INPUT: table.ATTENDED,
                    multiply.OUTPUT: self.states.ctypes.data,
                    multiply.OUTPUT_STRIDE: self.states.strides[0],
                    multiply.BIAS: weights.bias(part.fusion),
                },
            ),
        ]

    def pairing(self, weights: Weights, stream: tuple[int, int]) -> list[Stage]:
        """What makes the stream, at an address and with a stride, of tokens and states."""
        part = self._part
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
            product = {
                multiply.MATRIX: weights.place(part.projection),
                multiply.INPUT: table.NORMED,
                multiply.OUTPUT: stream[0],
                multiply.OUTPUT_STRIDE: stream[1],
                multiply.BIAS: weights.bias(part.projection),
            }
            stages.append((multiply.multiply, product))
        return stages
