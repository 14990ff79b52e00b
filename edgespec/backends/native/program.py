"""A model as a program: the stages that the compiled pass walks (`kernels/stages/`).

norm  project  attend  finish  multiply  norm  gated  multiply        a layer of a Llama
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.experts import Experts
from edgespec.backends.native.head_parts import HeadInputs, LeftStreams
from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.moe import stages as moe
from edgespec.backends.native.kernels.stages import angles, attend, gated, multiply, norm, project
from edgespec.backends.native.per_layer import PerLayerInputs
from edgespec.backends.native.recurrent.passes import RecurrentPasses
from edgespec.backends.native.recurrent.stages import RecurrentStages
from edgespec.backends.native.shape_tables import ShapeTables
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.weights import Weights
from edgespec.models.layers import (
    Attention,
    Dense,
    LayerSpec,
    Matrix,
    Mixer,
    Moe,
    Norm,
    PerLayerInput,
    Recurrent,
)
from edgespec.models.spec import ModelSpec
from edgespec.system.addresses import Entry, address_of

Stages = list[dict[int, int]]
"""Operands by column."""


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
        inputs: HeadInputs | None = None,
        left: LeftStreams | None = None,
    ) -> None:
        """`inputs` are a draft head's; `left` is what another one reads."""
        self._spec, self._weights, self._tables = spec, weights, tables
        self._per_layer, self._experts = per_layer, experts
        self._base: int = tables.base.ctypes.data
        self._isa = isa.chosen()
        self._recurrent = (
            None if passes is None else RecurrentStages(spec, weights, passes, tables.base)
        )
        stages = self._prelude()
        self.num_prelude = len(stages)
        self.starts: list[int] = []
        """Where each layer starts, and the last one ends."""
        for number, layer in enumerate(spec.layers):
            self.starts.append(len(stages))
            if number == 0 and per_layer is not None:
                stages.append(self._norm(is_normed=1))
                stages += [self._stage(*own) for own in per_layer.first_stages(weights)]
            if number == 0 and inputs is not None:
                stream = int(tables.base[table.STREAM]), int(tables.base[table.STREAM_STRIDE])
                stages += [self._stage(*own) for own in inputs.pairing(weights, stream)]
            stages += self._leave(left, number)
            stages += self._layer(number, layer)
        stages += self._leave(left, spec.num_layers)
        self.starts.append(len(stages))
        self.fusing = len(stages), len(stages)
        """Stages that make a draft head's states: the first, and the one after the last."""
        if inputs is not None:
            stages += [self._stage(*own) for own in inputs.fusing(weights)]
            self.fusing = self.fusing[0], len(stages)
        self.head = len(stages)
        """Where the stages of the head start: two, the norm and the logits."""
        stages += self._head(weights.vector(spec.last_norm))
        self.adapted = len(stages)
        """Where those of a head behind an adapter start: four."""
        up, stride = (int(tables.base[entry]) for entry in (table.UP, table.UP_STRIDE))
        stages += [
            self._norm(gain=weights.vector("", spec.dim)),
            self._stage(
                multiply.multiply,
                {multiply.INPUT: table.NORMED, multiply.OUTPUT: up, multiply.OUTPUT_STRIDE: stride},
            ),
            *self._head(weights.vector(spec.last_norm), source=(up, stride)),
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
        first, last = (self.adapted, self.adapted + 4) if adapter else (self.head, self.head + 2)
        self.words[last - 1, multiply.MATRIX] = matrix
        if adapter:
            self.words[first + 1, multiply.MATRIX] = adapter
        return first, last

    def _stage(self, entry: Entry, operands: dict[int, int], where: int = 0) -> dict[int, int]:
        """A stage over the table at an address, or the base."""
        return {table.ENTRY: address_of(entry), table.TABLE: where or self._base, **operands}

    def _prelude(self) -> Stages:
        return [self._stage(angles.angles, {}, where) for where in self._tables.rotating]

    def _layer(self, number: int, layer: LayerSpec) -> Stages:
        """A layer's stages; a pass may end after them, so that the stream is whole there."""
        assert layer.ffn is not None
        if isinstance(layer.mixer, Attention):
            mixed, joining = self._attention(number, layer.mixer, layer)
        else:
            mixed, joining = self._with_state(number, layer.mixer, layer)
        paired = self._spec.head_input
        is_paired = number == 0 and paired is not None and paired.projection is None
        stages = mixed if is_paired else [self._pre_norm(layer.mixer_norm), *mixed]
        stages.append(self._pre_norm(layer.ffn_norm, joining))
        if isinstance(layer.ffn, Moe):
            fed, joining = self._mixture(number, layer.ffn, layer)
        else:
            ending = layer.ffn_post_norm, layer.residual_scale, layer.output_scale
            fed, joining = self._dense(layer.ffn, *ending)
        stages += fed
        if layer.per_layer is not None:
            joined, joining = self._add_embedding(number, layer.per_layer, joining)
            stages += joined
        if joining:
            factor = self._weights.number(layer.output_scale) if layer.output_scale else 1.0
            stages.append(self._norm(stream_factor=float_bits(factor), **joining))
        return stages

    def _leave(self, left: LeftStreams | None, layer: int) -> Stages:
        """What a draft head reads of the stream before a layer."""
        if left is None:
            return []
        return [self._stage(*own) for own in left.stages(layer, self._weights)]

    def _pre_norm(self, own: Norm | None, joining: dict[str, int] | None = None) -> dict[int, int]:
        """The norm before a part; without one, NORMED is the stream as it is."""
        return self._norm(gain=self._gain(own), is_normed=1, **(joining or {}))

    def _norm(self, **operands: int) -> dict[int, int]:
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
        return self._stage(norm.norm, row)

    def _output(
        self,
        matrix: Matrix,
        rows: int,
        post: Norm | None,
        factor: float,
        scale: str = "",
        apart: bool = False,
    ) -> tuple[dict[int, int], dict[str, int]]:
        """The product at the end of a part: into the stream, or where it must be changed before it
        joins that or stay apart, into BRANCH; and what the next norm is told of that.
        """
        base, operands = self._tables.base, {multiply.MATRIX: self._weights.place(matrix)}
        operands |= {multiply.INPUT: rows, multiply.BIAS: self._weights.bias(matrix)}
        plain = post is None and factor == 1.0 and not scale and not apart
        place = table.STREAM if plain else table.BRANCH
        where, stride = map(int, base[place : place + 2])
        operands |= {multiply.OUTPUT: where, multiply.OUTPUT_STRIDE: stride}
        operands[multiply.ACCUMULATE] = int(plain)
        stage = self._stage(multiply.multiply, operands)
        if plain:
            return stage, {}
        return stage, {
            "joining": where,
            "joining_stride": stride,
            "joining_gain": self._gain(post),
            "joining_factor": float_bits(factor),
        }

    def _attention(
        self, number: int, own: Attention, layer: LayerSpec
    ) -> tuple[Stages, dict[str, int]]:
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
        gating = {attend.GATING: self._operation("sigmoid_gate") if own.gate else 0}
        output, joining = self._output(
            own.output, table.ATTENDED, layer.mixer_post_norm, layer.residual_scale
        )
        return [
            *self._projection(own, operands, where),
            self._stage(attend.attend, seen, where),
            self._stage(attend.finish, seen | gating, where),
            output,
        ], joining

    def _add_embedding(
        self, number: int, own: PerLayerInput, joining: dict[str, int]
    ) -> tuple[Stages, dict[str, int]]:
        """What the layer's own embedding of the tokens adds, of the stream as it is by then."""
        assert self._per_layer is not None
        gelu = self._operation("gelu")
        gate = self._per_layer.gate_stage(self._weights, own, number, gelu)
        output, joining_next = self._output(own.projection, table.GATED, own.norm, 1.0)
        return [self._norm(is_normed=1, **joining), self._stage(*gate), output], joining_next

    def _with_state(
        self, number: int, own: Mixer, layer: LayerSpec
    ) -> tuple[Stages, dict[str, int]]:
        assert isinstance(own, Recurrent) and self._recurrent is not None
        output, joining = self._output(
            own.output, table.ATTENDED, layer.mixer_post_norm, layer.residual_scale
        )
        return [*self._recurrent.layer(number), output], joining

    def _projection(self, own: Attention, operands: dict[int, int], where: int) -> Stages:
        """Whole heads at a time, or where all heads are normed together, all and then these."""
        if own.query_norm is None or own.query_norm.width == own.head_dim:
            return [self._stage(project.project, operands, where)]
        stages, base = [], self._tables.base
        parts = ((own.query, table.QUERY), (own.key, table.KEY), (own.value, table.VALUE))
        for matrix, place in parts:
            output, stride = map(int, base[place : place + 2])
            row = {multiply.MATRIX: self._weights.place(matrix), multiply.INPUT: table.NORMED}
            row |= {multiply.OUTPUT: output, multiply.OUTPUT_STRIDE: stride}
            row |= {multiply.BIAS: self._weights.bias(matrix)}
            stages.append(self._stage(multiply.multiply, row))
        return [*stages, self._stage(project.place, operands, where)]

    def _dense(
        self,
        own: Dense,
        post: Norm | None,
        factor: float = 1.0,
        scale: str = "",
        apart: bool = False,
    ) -> tuple[Stages, dict[str, int]]:
        weights = self._weights
        operands = {
            gated.GATE: weights.place(own.gate),
            gated.UP: weights.place(own.up),
            gated.GATE_BIAS: weights.bias(own.gate),
            gated.UP_BIAS: weights.bias(own.up),
            gated.WIDTH: own.width,
            gated.ACTIVATION: self._operation(own.activation),
        }
        output, joining = self._output(own.down, table.GATED, post, factor, scale, apart)
        return [self._stage(gated.gated, operands), output], joining

    def _mixture(self, number: int, own: Moe, layer: LayerSpec) -> tuple[Stages, dict[str, int]]:
        """Experts, of which the router reads NORMED before they do; a dense part beside comes first
        and is in BRANCH meanwhile.
        """
        assert self._experts is not None
        base, done = self._tables.base, Stages()
        post, factor, scale = layer.ffn_post_norm, layer.residual_scale, layer.output_scale
        plain = own.beside is None and post is None and not scale
        beside: dict[str, int] = {}
        if own.beside is not None:
            done, beside = self._dense(own.beside, own.beside_post_norm, apart=True)
        entry = table.STREAM if plain else table.UP if beside else table.BRANCH
        where, stride = map(int, base[entry : entry + 2])
        words = self._experts.words(number, own, (where, stride), plain, factor if plain else 1.0)
        if own.router_norm is not None:
            done.append(self._pre_norm(own.router_norm))
        done.append(self._stage(moe.router, {moe.LAYER: words}))
        if own.router_norm is not None or own.experts_norm is not None:
            done.append(self._pre_norm(own.experts_norm or layer.ffn_norm))
        for stage in (moe.route, moe.gate_up, moe.down):
            done.append(self._stage(stage, {moe.LAYER: words}))
        if plain:
            return done, {}
        branch, branch_stride = map(int, base[table.BRANCH : table.BRANCH + 2])
        if beside:
            operands = {
                moe.LEFT: branch,
                moe.LEFT_STRIDE: branch_stride,
                moe.LEFT_GAIN: beside["joining_gain"],
                moe.RIGHT: where,
                moe.RIGHT_STRIDE: stride,
                moe.RIGHT_GAIN: self._gain(own.experts_post_norm),
                moe.ADD_SCALED: isa.expert_address(self._isa, "add_scaled"),
            }
            done.append(self._stage(moe.join, operands))
        return done, {
            "joining": branch,
            "joining_stride": branch_stride,
            "joining_gain": self._gain(post),
            "joining_factor": float_bits(factor),
        }

    def _gain(self, own: Norm | None) -> int:
        """Where a norm's gain is, 0 without a norm."""
        return 0 if own is None else self._weights.vector(own.tensor, own.width)

    def _operation(self, name: str) -> int:
        return isa.activation_address(self._isa, name)

    def _head(self, gain: int, source: tuple[int, int] = (0, 0)) -> Stages:
        spec = self._spec
        cap = spec.logit_softcap
        operands: dict[int, Any] = {
            multiply.INPUT: table.NORMED,
            multiply.IS_SHAPED: int(cap != 0.0 or spec.logit_scale != 1.0),
            multiply.FACTOR: float_bits(spec.logit_scale),
            multiply.CAP: self._operation("softcap") if cap else 0,
            multiply.CAP_BITS: float_bits(cap),
        }
        where, stride = source
        return [
            self._norm(gain=gain, source=where, source_stride=stride),
            self._stage(multiply.logits, operands),
        ]
