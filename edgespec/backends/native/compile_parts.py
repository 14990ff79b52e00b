"""Compile what some models have beside attention and dense layers, or load it from the cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgespec.backends.native.code_parts import CodePart
from edgespec.backends.native.kernels import activations
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.moe import row_functions
from edgespec.backends.native.kernels.moe import stages as moe
from edgespec.backends.native.kernels.recurrent import inputs, state, walk
from edgespec.backends.native.kernels.stages import (
    convolve,
    cutoff,
    heads,
    joint,
    latent,
    per_layer,
    project,
    states,
    streams,
)
from edgespec.memory.kv.arena import LATENT
from edgespec.memory.plan.state_layout import INSTRUCTION_WORDS, ROW_WORDS
from edgespec.system.addresses import address_of


def _activations() -> None:
    for name in activations.FUNCTIONS:
        isa.activation_address(isa.chosen(), name)


def _experts() -> None:
    for entry in (moe.router, moe.route, moe.fetch, moe.gate_up, moe.down, moe.join):
        address_of(entry)
    for name in row_functions.FUNCTIONS:
        isa.expert_address(isa.chosen(), name)


def _latent() -> None:
    for entry in (heads.heads, latent.norm_input, latent.place):
        address_of(entry)
    isa.attention_addresses(isa.chosen(), LATENT)


def _per_layer() -> None:
    address_of(per_layer.embed)
    address_of(per_layer.gate)


def _states() -> None:
    for entry in (convolve.multiply_inputs, convolve.convolve, states.states, states.finish):
        address_of(entry)
    used = isa.chosen()
    for name in (*state.functions(isa.operations(used).lanes), *inputs.FUNCTIONS):
        isa.address(used, "recurrent", name)
    alone, slots = np.full(1, -1, np.int16), np.zeros(1, np.int64)
    out = np.zeros((2, INSTRUCTION_WORDS), np.int64)
    rows, scratch = np.zeros((1, ROW_WORDS), np.int64), np.zeros((walk.SCRATCH_ROWS, 1), np.int64)
    walk.plan_chain(1, 0, 0, out, 0)
    walk.plan_tree(alone, 0, 0, out, 0, scratch)
    walk.describe_rows(alone, 0, 0, slots, 0, 0, rows)


def _streams() -> None:
    for entry in (
        *(streams.begin, streams.predict, streams.correct, streams.add_to_others),
        *(streams.add_to_first, streams.take_others, streams.end, heads.heads, cutoff.cut),
    ):
        address_of(entry)


def _whole_norms() -> None:
    address_of(project.place)


def _draft_head() -> None:
    for entry in (joint.leave, joint.gather, joint.pair):
        address_of(entry)


COMPILE: dict[CodePart, Callable[[], None]] = {
    CodePart.ACTIVATIONS: _activations,
    CodePart.EXPERTS: _experts,
    CodePart.LATENT: _latent,
    CodePart.PER_LAYER: _per_layer,
    CodePart.STATES: _states,
    CodePart.STREAMS: _streams,
    CodePart.WHOLE_NORMS: _whole_norms,
    CodePart.DRAFT_HEAD: _draft_head,
}
