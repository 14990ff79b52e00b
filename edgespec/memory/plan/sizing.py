"""One model on one started process: what any settings would cost."""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from edgespec.memory.plan import calibration
from edgespec.memory.plan.calibration import Runtime
from edgespec.memory.plan.external_engine import (
    Ask,
    engine_bytes,
    external_footprint,
    loading_bytes,
)
from edgespec.memory.plan.footprint import native_footprint
from edgespec.memory.plan.head_sizes import DraftHeadSizes
from edgespec.memory.plan.kv_sizes import kv_bytes
from edgespec.memory.plan.native_sizes import (
    activation_bytes,
    logits_bytes,
    scratch_bytes,
    weights_bytes,
)
from edgespec.memory.plan.placement import DevicePart
from edgespec.memory.plan.plan import Footprint, FootprintItem
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS, Settings
from edgespec.memory.plan.state_layout import states_bytes
from edgespec.memory.plan.streaming import Streaming
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType
from edgespec.system.records import dataclass
from edgespec.system.size import KIB, MIB

DRAFT_NODES, DRAFT_CHUNK = 8, 32
"""Nodes of a pass of a draft model, and prompt tokens it takes at a time."""
DRAFT_SINKS = 4
"""First tokens that it keeps beside them: models rely on these ("Efficient Streaming Language
Models with Attention Sinks").
"""
MODEL_DRAFTER_BYTES = 64 * KIB
"""More than a drafter holds that asks a model; the model's bytes are items of their own."""
EARLY_EXIT, DRAFT_MODEL, MTP = "early-exit", "draft-model", "mtp"
MODEL_DRAFTERS = (EARLY_EXIT, DRAFT_MODEL, MTP)
"""Names of drafters that are no stores of text."""
WEIGHTS = {"suffix-automaton": 4, "trigram": 4, "consensus": 2, "recycling": 2}
"""Of drafters that need more memory to bring what they can than the others, whose weight is 1."""
LEAST_STORE_BYTES = 64 * KIB
MARKET_BYTES = 128 * KIB
"""More than the draft market's own arrays hold, for trees of the usual sizes."""
READERS = 4
"""Threads that read and check blocks of the prompt cache: checksums take longer than reading."""
MAPPED_BYTES = 12 * MIB
"""Most that is resident of a mapped datastore, where its pages can be given back."""


def mapped_bytes() -> int:
    """`MAPPED_BYTES`, for files whose constants are compiled in."""
    return MAPPED_BYTES


def store_shares(names: Sequence[str], num_bytes: int) -> dict[str, int]:
    """What each of these stores may hold of so many bytes: the least that it can work in, and of
    the rest by its weight.
    """
    weights = {name: WEIGHTS.get(name, 1) for name in names}
    least = min(LEAST_STORE_BYTES, num_bytes // max(1, len(names)))
    rest = num_bytes - least * len(names)
    whole = max(1, sum(weights.values()))
    return {name: least + rest * weight // whole for name, weight in weights.items()}


def resident_of(store: str | os.PathLike[str] | None) -> int:
    """What is resident of a datastore at most; opening it says what is wrong with the file."""
    if store is None:
        return 0
    most = MAPPED_BYTES if hasattr(mmap, "MADV_DONTNEED") else sys.maxsize
    with suppress(OSError):
        return min(Path(store).stat().st_size, most)
    return 0


def draft_context(context: int, own: int, window: int | None) -> int:
    """Positions that a draft model keeps of texts of up to `context`; `own` are those it can,
    `window` None keeps them all.
    """
    return min(context, own) if window is None else min(context, own, DRAFT_SINKS + window)


NATIVE_PAGES = 4 * MIB
"""Library pages that the native backend brings back beside another engine: measured 2.5 to 3."""


@dataclass(frozen=True, slots=True)
class DraftModelSizes:
    """A second model, which drafts for the first."""

    spec: ModelSpec
    tensors: tuple[TensorInfo, ...]
    ask: Ask | None = None
    """Says what an external engine would hold; None on the native backend."""
    shares_library: bool = False
    """The first model runs on the same engine, so its library is there already."""
    window: int | None = None
    """Tokens of a long text that it keeps; None for all."""

    def size_bytes(self, settings: Settings) -> int:
        """Weights, keys and values in f16 of every sequence, and the scratch of small passes."""
        spec, own = self.spec, self._settings(settings)
        sequences, threads, nodes = own.sequences, own.threads, own.max_nodes
        held = (threads + 1) * calibration.THREAD_BYTES  # it has one of its own
        if self.ask is not None:
            engine = self.ask(own, threads)
            library = 0 if self.shares_library else engine.library
            return held + library + sum(engine_bytes(spec, self.tensors, own, engine))
        held += 0 if self.shares_library else NATIVE_PAGES
        held += weights_bytes(self.tensors, spec) + sequences * kv_bytes(spec, own.context)
        held += logits_bytes(spec, nodes) + states_bytes(spec, sequences)
        held += activation_bytes(spec, own.prefill_chunk, "f16", sequences)
        return held + scratch_bytes(spec, own.context, nodes, own.prefill_chunk, threads, sequences)

    def devices(self, settings: Settings) -> tuple[DevicePart, ...]:
        """What other devices hold of it."""
        own = self._settings(settings)
        return () if self.ask is None else self.ask(own, own.threads).devices

    def loading_bytes(self, settings: Settings) -> int:
        """What an external engine needs to load and no longer needs for passes."""
        if self.ask is None:
            return 0
        own = self._settings(settings)
        engine = self.ask(own, own.threads)
        _, used = engine_bytes(self.spec, self.tensors, own, engine)
        return max(0, loading_bytes(self.tensors, engine) - used)

    def _settings(self, settings: Settings) -> Settings:
        nodes = max(DRAFT_NODES, settings.sequences)
        return replace(
            settings,
            context=draft_context(settings.context, self.spec.context_length, self.window),
            max_nodes=nodes,
            prefill_chunk=max(DRAFT_CHUNK, nodes),
            kv_type="f16",
        )


@dataclass(frozen=True, slots=True)
class Sizing:
    """Everything about a footprint that the planner does not choose."""

    spec: ModelSpec
    tensors: tuple[TensorInfo, ...]
    runtime: Runtime
    backend: str = "native"
    drafters: tuple[str, ...] = BUILT_IN_DRAFTERS
    """Names of the drafters that share the drafters' bytes."""
    datastore_bytes: int = 0
    """Most that is resident of a mapped datastore."""
    draft_model: DraftModelSizes | None = None
    adapter: tuple[TensorInfo, ...] = ()
    """Matrices of early exits."""
    ask: Ask | None = None
    """Says what an external engine would hold; None for our own backends."""
    draft_head: DraftHeadSizes | None = None
    streaming: Streaming | None = None
    """What of the weights is on disk."""
    prompt_cache: bool = False
    """Whether prompts are kept on disk."""

    def footprint(self, settings: Settings) -> Footprint:
        """The itemised peak of a session with these settings."""
        draft = self.draft_model
        draft_bytes = draft.size_bytes(settings) if draft else 0
        draft_loading_bytes = draft.loading_bytes(settings) if draft else 0
        if self.ask is not None:
            return external_footprint(
                self.spec,
                self.tensors,
                settings,
                self.ask(settings, settings.threads),
                drafters=self._shares(settings.drafter_bytes),
                runtime=self.runtime,
                datastore_bytes=self.datastore_bytes,
                draft_model_bytes=draft_bytes,
                draft_loading_bytes=draft_loading_bytes,
            )
        reference = self.backend == "reference"  # the same parts, with every weight as f32
        head = self.draft_head if settings.drafter_bytes else None
        if head and reference:
            head = replace(head, tensors=tuple(map(_as_f32, head.tensors)))
        made = native_footprint(
            self.spec,
            map(_as_f32, self.tensors) if reference else self.tensors,
            settings,
            drafters=self._shares(settings.drafter_bytes),
            runtime=self.runtime,
            datastore_bytes=self.datastore_bytes,
            draft_model_bytes=draft_bytes,
            draft_loading_bytes=draft_loading_bytes,
            adapter=self.adapter,
            head_bytes=head.size_bytes(settings) if head else 0,
            waiting_bytes=head.waiting_bytes(settings) if head else 0,
            streaming=self.streaming,
        )
        if not self.prompt_cache:
            return made
        reading = READERS * calibration.THREAD_BYTES
        note = f"{READERS} threads that read it"
        return Footprint((*made, FootprintItem("prompt cache", reading, note)))

    def kv_type(self, settings: Settings) -> str:
        """How keys and values are kept, which not every engine leaves to us."""
        own = "" if self.ask is None else self.ask(settings, settings.threads).kv_type
        return own or settings.kv_type

    def devices(self, settings: Settings) -> tuple[DevicePart, ...]:
        """What other devices hold besides this process."""
        return () if self.ask is None else self.ask(settings, settings.threads).devices

    def total(self, settings: Settings) -> int:
        """The peak in bytes."""
        return self.footprint(settings).total_bytes

    def _shares(self, drafter_bytes: int) -> dict[str, int]:
        """Most bytes of each drafter's stores, by their weights; what is left is the market's."""
        if not drafter_bytes or not self.drafters:
            return {}
        models = [name for name in self.drafters if name in MODEL_DRAFTERS]
        stores = [name for name in self.drafters if name not in MODEL_DRAFTERS]
        left = max(0, drafter_bytes - MARKET_BYTES - MODEL_DRAFTER_BYTES * len(models))
        stores_bytes = store_shares(stores, left)
        shares = {
            f"drafter {name}": MODEL_DRAFTER_BYTES if name in models else stores_bytes[name]
            for name in self.drafters
        }
        return shares | {"draft market": drafter_bytes - sum(shares.values())}


def _as_f32(tensor: TensorInfo) -> TensorInfo:
    size_bytes = 4 * math.prod(tensor.shape)
    return replace(tensor, type=TensorType.F32, size_bytes=size_bytes)
