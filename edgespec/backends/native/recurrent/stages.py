"""Recurrent layers as stages of a program.

multiply ..  convolve  states  finish  multiply        gated delta nets, Mamba-2
multiply  multiply_inputs  convolve  multiply          short convolutions
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.recurrent import words as w
from edgespec.backends.native.kernels.recurrent.steps import STEP_BYTES
from edgespec.backends.native.kernels.stages import convolve, multiply, states
from edgespec.backends.native.recurrent.passes import RecurrentPasses
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.weights import Weights
from edgespec.memory.plan.state_layout import (
    LayerLayout,
    num_kept,
    round_up,
    state_layout,
    values_of,
)
from edgespec.models.layers import GatedDeltaNet, Mamba2, Matrix, Recurrent, ShortConv
from edgespec.models.spec import ModelSpec
from edgespec.system.addresses import Entry, address_of

BLOCK = 128
"""Channels of a convolution that a thread takes on at a time, where no head says otherwise."""
Stages = list[dict[int, int]]


class RecurrentStages:
    """Compiles recurrent layers; holds the words that their stages read."""

    def __init__(
        self, spec: ModelSpec, weights: Weights, passes: RecurrentPasses, base: NDArray[np.int64]
    ) -> None:
        self._spec, self._weights, self._passes, self._base = spec, weights, passes, base
        self._layout, self._isa = state_layout(spec), isa.chosen()
        self._words: dict[int, NDArray[np.int64]] = {}

    def layer(self, number: int) -> Stages:
        """The stages of a layer but for its norm and its last product."""
        own = self._layout.layers[number]
        words = self._words[number] = self._describe(own)
        mixer, operands = own.mixer, {convolve.LAYER: words.ctypes.data}
        if isinstance(mixer, ShortConv):
            stages = [self._project(mixer.projection, 0)]
            stages.append(self._stage(convolve.multiply_inputs, operands))
            return [*stages, self._stage(convolve.convolve, operands)]
        if isinstance(mixer, GatedDeltaNet):
            stages, at = [], 0
            for matrix in (mixer.qkv, mixer.z, mixer.alpha, mixer.beta):
                stages.append(self._project(matrix, at))
                at += 4 * round_up(matrix.rows)
        else:
            stages = [self._project(mixer.projection, 0)]
        entries = (convolve.convolve, states.states, states.finish)
        return [*stages, *(self._stage(entry, operands) for entry in entries)]

    def settle(self) -> Stages:
        """The stages in which all layers' states take what is pending."""
        stages: Stages = []
        for words in self._words.values():
            operands = {convolve.LAYER: words.ctypes.data}
            stages.append(self._stage(convolve.convolve, operands))
            if words[w.HEADS]:
                stages.append(self._stage(states.states, operands))
        return stages

    def _stage(self, entry: Entry, operands: dict[int, int]) -> dict[int, int]:
        where = int(self._base.ctypes.data)
        return {table.ENTRY: address_of(entry), table.TABLE: where, **operands}

    def _project(self, matrix: Matrix, at: int) -> dict[int, int]:
        """A product of NORMED into PROJECTED, some bytes into each row."""
        rows = self._passes.projected
        operands = {
            multiply.MATRIX: self._weights.place(matrix),
            multiply.INPUT: table.NORMED,
            multiply.OUTPUT: rows.ctypes.data + at,
            multiply.OUTPUT_STRIDE: rows.strides[0],
            multiply.BIAS: self._weights.bias(matrix),
        }
        return self._stage(multiply.multiply, operands)

    def _describe(self, own: LayerLayout) -> NDArray[np.int64]:
        mixer = own.mixer
        words = np.zeros(w.LAYER_WORDS, np.int64)
        for entries in (self._places(own), self._tensors(mixer), self._functions(mixer)):
            for word, value in entries.items():
                words[word] = value
        if isinstance(mixer, GatedDeltaNet):
            entries = self._delta_net(mixer)
        elif isinstance(mixer, Mamba2):
            entries = self._mamba(mixer)
        else:
            entries = self._short_convolution(mixer)
        for word, value in entries.items():
            words[word] = value
        return words

    def _places(self, own: LayerLayout) -> dict[int, int]:
        """Where its part of scratch, states and kept rows is, and its heads."""
        passes, heads = self._passes, own.heads
        entries = {
            w.PASS: passes.words.ctypes.data,
            w.CHANNELS: own.mixer.channels,
            w.WIDTH: own.mixer.conv_width,
            w.PROJECTED: passes.projected.ctypes.data,
            w.PROJECTED_STRIDE: passes.projected.strides[0],
            w.TAIL_AT: own.tail_at,
            w.TAIL_BYTES: own.tail_bytes,
            w.STATES_AT: own.states_at,
            w.KEPT_RAW_AT: own.raw_at,
            w.KEPT_KEYS_AT: own.keys_at,
            w.KEPT_DELTAS_AT: own.deltas_at,
            w.KEPT_DECAYS_AT: own.decays_at,
            w.WORK: passes.work.ctypes.data,
            w.WORK_THREAD: passes.work.strides[0],
            w.BUFFERS_AT: STEP_BYTES * (num_kept(passes.max_nodes) + 2),
        }
        if heads is None:
            return entries
        return entries | {
            w.HEADS: heads.heads,
            w.KEY_HEADS: heads.key_heads,
            w.KEY_DIM: heads.key_dim,
            w.VALUE_DIM: heads.value_dim,
            w.KEY_RUN: heads.key_run,
            w.GROUPS: heads.norm_groups,
            w.GROUP_WIDTH: heads.values // heads.norm_groups,
            w.MIXED: passes.mixed.ctypes.data,
            w.MIXED_STRIDE: passes.mixed.strides[0],
            w.DECAYS: passes.decays.ctypes.data,
            w.BETAS: passes.betas.ctypes.data,
            w.GATES_STRIDE: passes.decays.strides[0],
        }

    def _tensors(self, mixer: Recurrent) -> dict[int, int]:
        """Small tensors, and the numbers of norms."""
        weights, epsilon = self._weights, float_bits(self._spec.norm_epsilon)
        entries = {
            w.TAPS: weights.turned(mixer.conv, mixer.channels),
            w.TAP_STRIDE: 4 * mixer.channels,
            w.EPSILON_BITS: epsilon,
        }
        if isinstance(mixer, ShortConv):
            return entries
        return entries | {
            w.TIME_BIAS: weights.vector(mixer.dt_bias),
            w.RATES: weights.vector(mixer.decay),
            w.GAIN: weights.vector(mixer.norm.tensor, values_of(mixer)),
        }

    def _functions(self, mixer: Recurrent) -> dict[int, int]:
        silu = "" if isinstance(mixer, ShortConv) else "_silu"
        net, norm = "delta", "norm_then_gate"
        if isinstance(mixer, Mamba2):
            net, norm = "mamba", "gate_then_norm"
        names = {
            w.CONVOLVE: f"convolve_{mixer.conv_width}{silu}",
            w.L2_NORM: "l2_norm",
            w.TIME_STEPS: "time_steps",
            w.SIGMOID: "sigmoid",
            w.MULTIPLY: "multiply",
            w.READ: f"{net}_read",
            w.ADVANCE: f"{net}_advance",
            w.UPDATE: f"{net}_update",
            w.GATED_NORM: norm,
        }
        return {word: isa.address(self._isa, "recurrent", name) for word, name in names.items()}

    def _delta_net(self, mixer: GatedDeltaNet) -> dict[int, int]:
        keys = mixer.key_heads * mixer.key_dim
        gate = round_up(mixer.qkv.rows)
        times = gate + round_up(mixer.z.rows)
        places = {
            w.GATE_AT: gate,
            w.TIMES_AT: times,
            w.BETAS_AT: times + round_up(mixer.alpha.rows),
            w.KEYS_AT: keys,
            w.VALUES_AT: 2 * keys,
        }
        return {word: 4 * place for word, place in places.items()} | {
            w.BLOCK: mixer.key_dim,
            w.NORMED_QUERIES: mixer.key_heads,
            w.NORMED_KEYS: mixer.key_heads,
            w.SCALE_BITS: float_bits(mixer.key_dim**-0.5),
        }

    def _mamba(self, mixer: Mamba2) -> dict[int, int]:
        inner, keys = mixer.heads * mixer.head_dim, mixer.groups * mixer.state_dim
        places = {
            w.RAW_AT: inner,
            w.TIMES_AT: inner + mixer.channels,
            w.KEYS_AT: inner,
            w.QUERIES_AT: inner + keys,
            w.GAIN_STRIDE: inner // mixer.groups,
        }
        weights = self._weights
        return {word: 4 * place for word, place in places.items()} | {
            w.BLOCK: BLOCK,
            w.BETAS_AT: -1,
            w.CONV_BIAS: weights.vector(mixer.conv_bias),
            w.SKIPS: weights.vector(mixer.skip),
        }

    def _short_convolution(self, mixer: ShortConv) -> dict[int, int]:
        """Rows are b, c and x: the convolution is of b * x, and c is the gate."""
        floats, stride = (int(word) for word in self._base[table.ATTENDED : table.ATTENDED + 2])
        return {
            w.BLOCK: BLOCK,
            w.GATE_AT: 4 * mixer.channels,
            w.FACTOR_AT: 8 * mixer.channels,
            w.MIXED: floats,
            w.MIXED_STRIDE: stride,
        }
