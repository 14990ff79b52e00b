"""Prompts that outlive their process: what took long to compute goes to the prompt cache when a
reply has ended, and is read from there before another process would compute it again.

The text of a reply depends on none of this: what is read are the bytes that the same tokens give.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from edgespec.engine.idle_sequences import IdleSequences, KvTraffic
from edgespec.engine.slot import CachedSequence, Slot
from edgespec.errors import EdgeSpecError
from edgespec.memory.kv.arena import BLOCK
from edgespec.memory.kv.prompt_cache import PromptCache, open_prompt_cache
from edgespec.models.file import ModelFile

LEAST_S = 1.0
"""Prompts that took less to compute are not kept."""


class KeptPrompts:
    """An engine's way to the prompt cache; used by one thread at a time."""

    def __init__(self, file: ModelFile, idle: IdleSequences, limit_bytes: int) -> None:
        """A limit of 0 keeps nothing."""
        store = idle.target.store
        self._file, self._idle, self._limit_bytes = file, idle, limit_bytes
        self._arena = store.only if store is not None and limit_bytes else None

    @cached_property
    def _cache(self) -> PromptCache | None:
        if self._arena is None:
            return None
        facts = (self._idle.kind(), self._file.changed_ns)
        kind = hashlib.blake2b(repr(facts).encode(), digest_size=32).digest()
        return open_prompt_cache(self._limit_bytes, kind, self._arena.block_bytes)

    def recall(
        self, slot: Slot, prompt_ids: Sequence[int], others: Iterable[CachedSequence]
    ) -> None:
        """Let a slot begin with what the cache has of a prompt, if that is more than the slot and
        the others have in memory.
        """
        if self._cache is None:
            return
        known, source = slot.nearest(prompt_ids, others)
        found = self._cache.find(np.array(prompt_ids[:-1], np.int32))
        length = sum(len(block.ids) for block in found)
        if length <= known:
            return
        common = known - known % BLOCK
        slot.start(prompt_ids, common, source)
        sequence, traffic = slot.sequence, self._idle.traffic
        try:
            blocks = sequence.state.own_contents(common, length)
            read, wrong = self._cache.read(found[common // BLOCK :], blocks)
        except EdgeSpecError as error:  # no room
            read, wrong = 0, str(error)
        sequence.filled(common + read)
        sequence.truncate(common + read)  # gives back what could not be read
        slot.ids[:] = prompt_ids[: common + read + 1]
        traffic.prompt_cache_tokens += read
        if wrong:
            traffic.note(f"a prompt was not read from the prompt cache to its end: {wrong}")

    def keep(self, slot: Slot, traffic: KvTraffic, prefill_s: float) -> None:
        """Write what a slot holds to the cache, if its prompt took long to compute."""
        store = self._idle.target.store
        if self._cache is None or store is None or prefill_s < LEAST_S:
            return
        length = slot.sequence.length
        try:
            self._cache.write(np.array(slot.ids[:length], np.int32), store.contents(slot.sequence))
        except OSError as error:
            traffic.note(f"the prompt could not be written to the prompt cache: {error}")
