"""Embeddings of a token for every layer: their buffers, and the stages that make and use them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.stages import multiply, per_layer
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.weights import Weights
from edgespec.models.layers import PerLayerInput
from edgespec.models.spec import ModelSpec, PerLayerEmbedding
from edgespec.system.addresses import Entry


class PerLayerInputs:
    """The embeddings of a pass' nodes, f32 [rows, layers * width], and what their tokens' own are
    projected to.
    """

    def __init__(self, spec: ModelSpec, part: PerLayerEmbedding, num_rows: int) -> None:
        self._spec, self._part = spec, part
        self._columns = part.table.columns
        self._extra, self._projected = np.zeros((2, num_rows, self._columns), np.float32)

    @property
    def size_bytes(self) -> int:
        return self._extra.nbytes + self._projected.nbytes

    def look_up(self, weights: Weights, tokens: NDArray[np.int32], first: int) -> None:
        """Write the embeddings of tokens [n] to rows `first` ..."""
        weights.packed(self._part.table).unpack_rows(tokens, self._extra[first:])

    def first_stages(self, weights: Weights) -> list[tuple[Entry, dict[int, int]]]:
        """What makes the rows, once NORMED holds the tokens' own embeddings."""
        part, spec = self._part, self._spec
        product = {
            multiply.MATRIX: weights.place(part.projection),
            multiply.INPUT: table.NORMED,
            multiply.OUTPUT: self._projected.ctypes.data,
            multiply.OUTPUT_STRIDE: self._projected.strides[0],
        }
        joined = {
            per_layer.EXTRA: self._extra.ctypes.data,
            per_layer.EXTRA_STRIDE: self._extra.strides[0],
            per_layer.PROJECTED: self._projected.ctypes.data,
            per_layer.PROJECTED_STRIDE: self._projected.strides[0],
            per_layer.LAYERS: self._columns // part.width,
            per_layer.WIDTH: part.width,
            per_layer.GAIN: weights.vector(part.norm.tensor),
            per_layer.PROJECTED_FACTOR: float_bits(1.0 / math.sqrt(spec.dim)),
            per_layer.EXTRA_FACTOR: float_bits(math.sqrt(part.width)),
            per_layer.SUM_FACTOR: float_bits(1.0 / math.sqrt(2.0)),
        }
        return [(multiply.multiply, product), (per_layer.embed, joined)]

    def gate_stage(
        self, weights: Weights, own: PerLayerInput, layer: int, activation: int
    ) -> tuple[Entry, dict[int, int]]:
        """What puts a layer's gated embeddings into GATED."""
        width = self._part.width
        return per_layer.gate, {
            per_layer.GATE: weights.place(own.gate),
            per_layer.ACTIVATION: activation,
            per_layer.OWN: self._extra.ctypes.data + 4 * layer * width,
            per_layer.OWN_STRIDE: self._extra.strides[0],
            per_layer.OWN_WIDTH: width,
        }
