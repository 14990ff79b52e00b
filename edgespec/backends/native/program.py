"""A model as a program: the stages that the compiled pass walks (`kernels/stages/`).

norm  project  attend  finish  multiply  norm  gated  multiply        a layer of a Llama
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.experts import Experts
from edgespec.backends.native.feed_forward import FeedForward
from edgespec.backends.native.head_parts import HeadInputs, LeftStreams
from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.stages import (
    angles,
    attend,
    multiply,
    project,
)
from edgespec.backends.native.latent import latent_stages
from edgespec.backends.native.per_layer import PerLayerInputs
from edgespec.backends.native.recurrent.passes import RecurrentPasses
from edgespec.backends.native.recurrent.stages import RecurrentStages
from edgespec.backends.native.shape_tables import ShapeTables
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.stage_maker import Joining, StageMaker, Stages
from edgespec.backends.native.streaming.streamed_weights import StreamedWeights
from edgespec.backends.native.streams import ResidualStreams
from edgespec.backends.native.weights import Weights
from edgespec.models.layers import (
    AltUp,
    Attention,
    LatentAttention,
    LayerSpec,
    Mixer,
    PerLayerInput,
    Recurrent,
)
from edgespec.models.spec import ModelSpec


class Program:
    """The stages of a model, as int64 [stages, words], and where its layers and its head start."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        tables: ShapeTables,
        per_layer: PerLayerInputs | None = None,
        passes: RecurrentPasses | None = None,
        experts: Experts | None = None,
        streams: ResidualStreams | None = None,
        inputs: HeadInputs | None = None,
        left: LeftStreams | None = None,
        streamed: StreamedWeights | None = None,
    ) -> None:
        """`inputs` are a draft head's; `left` is what another one reads; `streamed` comes from disk
        while layers are computed.
        """
        self._spec, self._weights, self._tables = spec, weights, tables
        self._per_layer, self._streams = per_layer, streams
        self._maker = maker = StageMaker(weights, tables.base)
        self._feed_forward = FeedForward(maker, experts)
        self._recurrent = (
            None if passes is None else RecurrentStages(spec, weights, passes, tables.base)
        )
        stages = self._prelude()
        self.num_prelude = len(stages)
        self.starts: list[int] = []
        """Where each layer starts, and the last one ends."""
        for number, layer in enumerate(spec.layers):
            self.starts.append(len(stages))
            if number == 0:
                stages += self._before_layers()
            if number == 0 and inputs is not None:
                stream = int(tables.base[table.STREAM]), int(tables.base[table.STREAM_STRIDE])
                stages += [maker.stage(*own) for own in inputs.pairing(weights, stream)]
            stages += self._leave(left, number)
            own = self._layer(number, layer)
            stages += own if streamed is None else streamed.around(own, maker)
        stages += self._leave(left, spec.num_layers)
        self.starts.append(len(stages))
        self.fusing = len(stages), len(stages)
        """Stages that make a draft head's states: the first, and the one after the last."""
        if inputs is not None:
            stages += [maker.stage(*own) for own in inputs.fusing(weights)]
            self.fusing = self.fusing[0], len(stages)
        self.head = len(stages)
        """Where the stages of the head start: the norm and the logits, behind what makes one stream
        of several.
        """
        if streams is not None:
            stages += streams.end(maker)
        stages += self._head(weights.vector(spec.last_norm))
        self.adapted = len(stages)
        """Where those of a head behind an adapter start: four."""
        up = maker.place(table.UP)
        to_up = {multiply.OUTPUT: up[0], multiply.OUTPUT_STRIDE: up[1]}
        stages += [
            maker.norm(gain=weights.vector("", spec.dim)),
            maker.stage(multiply.multiply, {multiply.INPUT: table.NORMED, **to_up}),
            *self._head(weights.vector(spec.last_norm), source=up),
        ]
        self.settling = len(stages), len(stages)
        """Stages in which states take what is pending: the first, and the one after the last."""
        if self._recurrent is not None:
            stages += self._recurrent.settle()
            self.settling = self.settling[0], len(stages)
        self.words = np.zeros((len(stages), table.STAGE_WORDS), np.int64)
        for row, stage in zip(self.words, stages, strict=True):
            for column, value in stage.items():
                row[column] = value

    def fill(self, c: NDArray[np.int64]) -> None:
        """Enter the program in the base table."""
        c[table.PROGRAM], c[table.NUM_PRELUDE] = self.words.ctypes.data, self.num_prelude

    def choose_head(self, matrix: int, adapter: int) -> tuple[int, int]:
        """Let the head multiply by a matrix, behind an adapter's matrix unless that is 0; returns
        the first stage and the one after the last.
        """
        first, last = (self.adapted, self.adapted + 4) if adapter else (self.head, self.adapted)
        self.words[last - 1, multiply.MATRIX] = matrix
        if adapter:
            self.words[first + 1, multiply.MATRIX] = adapter
        return first, last

    def _prelude(self) -> Stages:
        return [self._maker.stage(angles.angles, {}, where) for where in self._tables.rotating]

    def _before_layers(self) -> Stages:
        """What is made of the embeddings once."""
        if self._per_layer is None and self._streams is None:
            return []
        stages = [self._maker.norm(is_normed=1)]
        if self._per_layer is not None:
            first = self._per_layer.first_stages(self._weights)
            stages += [self._maker.stage(*own) for own in first]
        if self._streams is not None:
            stages += self._streams.begin(self._maker)
        return stages

    def _layer(self, number: int, layer: LayerSpec) -> Stages:
        """A layer's stages; a pass may end after them, so that the stream is whole there."""
        stages: Stages = []
        if layer.altup is not None and self._streams is not None:
            stages.append(self._maker.pre_norm(layer.altup.router_norm))
            stages += self._streams.predict(layer.altup, self._maker)
        paired = self._spec.head_input
        if number or paired is None or paired.projection is not None:  # else both are normed
            stages.append(self._maker.pre_norm(layer.mixer_norm))
        mixed, joining = self._mixer(number, layer)
        stages += [*mixed, self._maker.pre_norm(layer.ffn_norm, joining)]
        fed, joining = self._feed_forward.stages(number, layer)
        stages += fed
        if layer.altup is not None:
            return [*stages, *self._corrected(number, layer, layer.altup, joining)]
        if layer.per_layer is not None:
            joined, joining = self._add_embedding(number, layer.per_layer, joining)
            stages += joined
        if joining:
            factor = self._weights.number(layer.output_scale) if layer.output_scale else 1.0
            stages.append(self._maker.norm(stream_factor=float_bits(factor), **joining))
        return stages

    def _leave(self, left: LeftStreams | None, layer: int) -> Stages:
        """What a draft head reads of the stream before a layer."""
        if left is None:
            return []
        return [self._maker.stage(*own) for own in left.stages(layer, self._weights)]

    def _mixer(self, number: int, layer: LayerSpec) -> tuple[Stages, Joining]:
        if isinstance(layer.mixer, LatentAttention):
            return self._latent(number, layer.mixer, layer)
        if not isinstance(layer.mixer, Attention):
            return self._with_state(number, layer.mixer, layer)
        mixed, joining = self._attention(number, layer.mixer, layer)
        if layer.laurel is not None and self._streams is not None:
            beside = self._streams.laurel(layer.laurel, self._maker)
            mixed = [*beside, *mixed]
            joining["stream_factor"] = float_bits(math.sqrt(0.5))
        return mixed, joining

    def _corrected(self, number: int, layer: LayerSpec, own: AltUp, joining: Joining) -> Stages:
        """The end of a layer that works on the first of several streams."""
        assert self._streams is not None and self._per_layer is not None
        assert layer.per_layer is not None
        part, gelu = layer.per_layer, self._maker.operation("gelu")
        corrected = self._streams.correct(own, self._maker)
        output, joined = self._maker.output(part.projection, table.GATED, part.norm, 1.0)
        rows = joined["joining"], joined["joining_stride"]
        return [
            self._maker.pre_norm(own.router_norm, joining),
            *corrected,
            self._maker.stage(*self._per_layer.gate_stage(self._weights, part, number, gelu)),
            output,
            self._streams.add_to_others(rows, part.norm, self._maker),
        ]

    def _attention(self, number: int, own: Attention, layer: LayerSpec) -> tuple[Stages, Joining]:
        weights, (shape, where) = self._weights, self._tables.of(own)
        place = shape.layers.index(number if own.shares is None else own.shares)
        norms = {
            project.QUERY_NORM: own.query_norm,
            project.KEY_NORM: own.key_norm,
            project.VALUE_NORM: own.value_norm,
        }
        operands = {
            project.LAYER: place,
            project.QUERY: weights.place(own.query),
            project.KEY: weights.place(own.key),
            project.VALUE: weights.place(own.value),
            project.GATE: weights.place(own.gate),
            project.QUERY_BIAS: weights.bias(own.query),
            project.KEY_BIAS: weights.bias(own.key),
            project.VALUE_BIAS: weights.bias(own.value),
            project.GATE_BIAS: weights.bias(own.gate),
            **{
                column: weights.vector(each.tensor, each.width)
                for column, each in norms.items()
                if each is not None
            },
        }
        sinks = weights.vector(own.sinks) if own.sinks else 0
        seen = {attend.LAYER: place, attend.SINKS: sinks}
        gating = {attend.GATING: self._maker.operation("sigmoid_gate") if own.gate else 0}
        ending = layer.mixer_post_norm, layer.residual_scale, "", layer.laurel is not None
        output, joining = self._maker.output(own.output, table.ATTENDED, *ending)
        return [
            *self._projection(own, operands, where),
            self._maker.stage(attend.attend, seen, where),
            self._maker.stage(attend.finish, seen | gating, where),
            output,
        ], joining

    def _latent(
        self, number: int, own: LatentAttention, layer: LayerSpec
    ) -> tuple[Stages, Joining]:
        shape, where = self._tables.of(own.absorbed)
        place = shape.layers.index(number)
        stages = latent_stages(own, place, where, self._maker)
        output, joining = self._maker.output(
            own.output, table.GATED, layer.mixer_post_norm, layer.residual_scale
        )
        return [*stages, output], joining

    def _add_embedding(
        self, number: int, own: PerLayerInput, joining: Joining
    ) -> tuple[Stages, Joining]:
        """What the layer's own embedding of the tokens adds, of the stream as it is by then."""
        assert self._per_layer is not None
        gelu = self._maker.operation("gelu")
        gate = self._per_layer.gate_stage(self._weights, own, number, gelu)
        output, joining_next = self._maker.output(own.projection, table.GATED, own.norm, 1.0)
        return [
            self._maker.norm(is_normed=1, **joining),
            self._maker.stage(*gate),
            output,
        ], joining_next

    def _with_state(self, number: int, own: Mixer, layer: LayerSpec) -> tuple[Stages, Joining]:
        assert isinstance(own, Recurrent) and self._recurrent is not None
        output, joining = self._maker.output(
            own.output, table.ATTENDED, layer.mixer_post_norm, layer.residual_scale
        )
        return [*self._recurrent.layer(number), output], joining

    def _projection(self, own: Attention, operands: dict[int, int], where: int) -> Stages:
        """Whole heads at a time, or where all heads are normed together, all and then these."""
        if own.query_norm is None or own.query_norm.width == own.head_dim:
            return [self._maker.stage(project.project, operands, where)]
        maker = self._maker
        parts = ((own.query, table.QUERY), (own.key, table.KEY), (own.value, table.VALUE))
        stages = [
            maker.product(matrix, table.NORMED, maker.place(entry))
            for matrix, entry in parts
            if matrix is not None
        ]
        return [*stages, self._maker.stage(project.place, operands, where)]

    def _head(self, gain: int, source: tuple[int, int] = (0, 0)) -> Stages:
        spec = self._spec
        cap = spec.logit_softcap
        operands: dict[int, Any] = {
            multiply.INPUT: table.NORMED,
            multiply.IS_SHAPED: int(cap != 0.0 or spec.logit_scale != 1.0),
            multiply.FACTOR: float_bits(spec.logit_scale),
            multiply.CAP: self._maker.operation("softcap") if cap else 0,
            multiply.CAP_BITS: float_bits(cap),
        }
        where, stride = source
        return [
            self._maker.norm(gain=gain, source=where, source_stride=stride),
            self._maker.stage(multiply.logits, operands),
        ]
