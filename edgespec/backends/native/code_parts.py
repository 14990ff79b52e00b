"""Parts of a model that ask for compiled code of their own, told without importing any of it."""

from __future__ import annotations

import enum

from edgespec.models.layers import Attention, LatentAttention, Moe, Recurrent
from edgespec.models.spec import ModelSpec, TensorType


class CodePart(enum.Enum):
    """What a Llama of dense layers does without; compiled where a model has it."""

    ACTIVATIONS = enum.auto()
    EXPERTS = enum.auto()
    LATENT = enum.auto()
    PER_LAYER = enum.auto()
    STATES = enum.auto()
    STREAMS = enum.auto()
    WHOLE_NORMS = enum.auto()
    DRAFT_HEAD = enum.auto()


Compiled = TensorType | CodePart
"""What decides which code is compiled: types of matrices, and parts."""


def code_parts(spec: ModelSpec) -> frozenset[CodePart]:
    """The parts that a model has."""
    found = set()
    if spec.logit_softcap or spec.per_layer_embedding is not None:
        found.add(CodePart.ACTIVATIONS)
    if spec.per_layer_embedding is not None:
        found.add(CodePart.PER_LAYER)
    if spec.head_input is not None:
        found.add(CodePart.DRAFT_HEAD)
    if spec.streams is not None:
        found |= {CodePart.STREAMS, CodePart.ACTIVATIONS}
    for layer in spec.layers:
        mixer, ffn = layer.mixer, layer.ffn
        if isinstance(mixer, Recurrent):
            found.add(CodePart.STATES)
        elif isinstance(mixer, LatentAttention):
            found.add(CodePart.LATENT)
        elif isinstance(mixer, Attention):
            if mixer.gate is not None or mixer.softcap:
                found.add(CodePart.ACTIVATIONS)
            norm = mixer.query_norm
            if norm is not None and norm.width != mixer.head_dim:
                found.add(CodePart.WHOLE_NORMS)
        if isinstance(ffn, Moe):
            found |= {CodePart.EXPERTS, CodePart.ACTIVATIONS}
        elif ffn is not None and ffn.activation != "silu":
            found.add(CodePart.ACTIVATIONS)
    return frozenset(found)


def named(name: str) -> Compiled:
    """The type or part of this name; KeyError when there is none."""
    if name in TensorType.__members__:
        return TensorType[name]
    return CodePart[name]
