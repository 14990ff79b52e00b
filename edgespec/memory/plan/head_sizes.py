"""Bytes of a draft head beside a model on our own backends, by formula; a test holds it to them."""

from __future__ import annotations

from dataclasses import replace

from edgespec.memory.plan.kv_sizes import kv_bytes
from edgespec.memory.plan.native_sizes import (
    activation_bytes,
    logits_bytes,
    padded_rows,
    scratch_bytes,
    weights_bytes,
)
from edgespec.memory.plan.settings import Settings
from edgespec.models.spec import ModelSpec, TensorInfo
from edgespec.system.records import dataclass

HEAD_ITEM = "draft head"
HEAD_NODES, HEAD_CHUNK = 8, 64
"""Nodes of a head's pass, and tokens of a prompt that it reads at a time."""
KEPT_STATES = 64
"""Positions whose states wait for a head that is not asked."""


@dataclass(frozen=True, slots=True)
class DraftHeadSizes:
    """A head, and the model that it drafts for."""

    spec: ModelSpec
    tensors: tuple[TensorInfo, ...]
    """Its own, and not those it shares with the model."""
    model: ModelSpec

    def size_bytes(self, settings: Settings) -> int:
        """Weights, keys and values in f16 of every sequence if it has any, the scratch of small
        passes with states taken and left, perhaps embeddings twice; and what the model's passes
        leave, rows x width x 4 bytes, and early nodes once more.
        """
        spec, own = self.spec, head_settings(settings, self.spec)
        sequences, threads, nodes = own.sequences, own.threads, own.max_nodes
        held = weights_bytes(self._tensors, spec) + logits_bytes(spec, nodes)
        if not spec.borrows_keys:
            held += sequences * kv_bytes(spec, own.context)
        held += activation_bytes(spec, own.prefill_chunk, own.kv_type, sequences)
        held += scratch_bytes(spec, own.context, nodes, own.prefill_chunk, threads, sequences)
        assert spec.head_input is not None
        is_beside = spec.head_input.token_norm is None
        states = (2 + 2 * is_beside) * padded_rows(own.prefill_chunk) * spec.state_dim
        rows = padded_rows(max(settings.max_nodes, settings.prefill_chunk))
        left = (rows + settings.max_nodes) * self.width
        return held + 4 * (states + left)

    def waiting_bytes(self, settings: Settings) -> int:
        """Of each sequence the states that wait, with their tokens, and the positions that were
        read; and the ids of a head's own tokens.
        """
        each = KEPT_STATES * (self.width + 1)
        each += 0 if self.spec.borrows_keys else settings.context
        return 4 * (settings.sequences * each + bool(self.spec.token_ids) * self.spec.vocab_size)

    @property
    def width(self) -> int:
        """Numbers that a position of the model leaves for it."""
        assert self.spec.head_input is not None
        return len(self.spec.head_input.taps) * self.model.dim

    @property
    def _tensors(self) -> tuple[TensorInfo, ...]:
        return tuple(each for each in self.tensors if each.name != self.spec.token_ids)


def head_settings(settings: Settings, head: ModelSpec) -> Settings:
    """What a head is opened with, beside a model with these settings."""
    nodes = max(HEAD_NODES, settings.sequences)
    if head.borrows_keys:  # and reads no prompts
        return replace(settings, max_nodes=nodes, prefill_chunk=nodes)
    return replace(
        settings,
        max_nodes=nodes,
        prefill_chunk=max(HEAD_CHUNK, nodes),
        kv_type="f16",
    )
