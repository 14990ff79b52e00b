"""Prompts that outlive their process: what took long to compute goes to the prompt cache when a
reply has ended, and is read from there before another process would compute it again.

The text of a reply depends on none of this: what is read are the bytes that the same tokens give.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from edgespec.backends.sequence import KvSequence
from edgespec.engine.idle_sequences import IdleSequences, KvTraffic
from edgespec.engine.slot import CachedSequence, Slot, num_common
from edgespec.errors import EdgeSpecError
from edgespec.memory.kv.arena import BLOCK
from edgespec.memory.kv.prompt_cache import PromptCache, prompt_folder
from edgespec.memory.kv.prompt_texts import PromptTexts
from edgespec.models.file import ModelFile

LEAST_S = 1.0
"""Prompts that took less to compute are not kept."""


class KeptPrompts:
    """An engine's way to the prompt cache; used by one thread at a time."""

    def __init__(self, file: ModelFile, idle: IdleSequences, limit_bytes: int) -> None:
        """A limit of 0 keeps nothing."""
        self._file, self._idle, self._limit_bytes = file, idle, limit_bytes
        self._store = idle.target.store if limit_bytes else None

    @cached_property
    def _cache(self) -> PromptCache | PromptTexts | None:
        folder = None if self._store is None else prompt_folder()
        if self._store is None or folder is None:
            return None
        facts = (self._idle.kind(), self._file.changed_ns)
        kind = hashlib.blake2b(repr(facts).encode(), digest_size=32).digest()
        if self._store.only is None:
            return PromptTexts(folder, self._limit_bytes, kind)
        return PromptCache(folder, self._limit_bytes, kind, self._store.only.block_bytes)

    def recall(
        self, slot: Slot, prompt_ids: Sequence[int], others: Iterable[CachedSequence]
    ) -> None:
        """Let a slot begin with what the cache has of a prompt, if that is more than the slot and
        the others have in memory.
        """
        cache = self._cache
        if cache is None:
            return
        known, source = slot.nearest(prompt_ids, others)
        if isinstance(cache, PromptTexts):
            wrong = self._recall_text(cache, slot, prompt_ids, known)
        else:
            wrong = self._recall_blocks(cache, slot, prompt_ids, known, source)
        if wrong:
            told = f"a prompt was not read from the prompt cache to its end: {wrong}"
            self._idle.traffic.note(told)

    def _recall_blocks(
        self, cache: PromptCache, slot: Slot, prompt_ids: Sequence[int], known: int,
        source: KvSequence,
    ) -> str:  # fmt: skip
        """Go on from what is known block by block; returns what was wrong."""
        found = cache.find(np.array(prompt_ids[:-1], np.int32))
        length = sum(len(block.ids) for block in found)
        if length <= known:
            return ""
        common = known - known % BLOCK
        slot.start(prompt_ids, common, source)
        sequence = slot.sequence
        try:
            blocks = sequence.state.own_contents(common, length)
            read, wrong = cache.read(found[common // BLOCK :], blocks)
        except EdgeSpecError as error:  # no room
            read, wrong = 0, str(error)
        sequence.filled(common + read)
        sequence.truncate(common + read)  # gives back what could not be read
        slot.ids[:] = prompt_ids[: common + read + 1]
        self._idle.traffic.prompt_cache_tokens += read
        return wrong

    def _recall_text(
        self, cache: PromptTexts, slot: Slot, prompt_ids: Sequence[int], known: int
    ) -> str:
        """Take over the text that a prompt can go on from farthest, whole; returns what was
        wrong.
        """
        assert self._store is not None
        best = None
        for text in cache.texts():
            common = num_common(text.ids.tolist(), prompt_ids, text.outline.length)
            length = self._store.returns_to(text.outline, common)
            if length > known:
                best, known = text, length
        if best is None:
            return ""
        sequence = slot.sequence
        slot.ids.clear()
        try:
            cache.read(best, self._store.begin(sequence, best.outline))
        except EdgeSpecError as error:
            sequence.truncate(0)
            return str(error)
        sequence.filled(best.outline.length)
        known = sequence.truncate(known)
        slot.ids[:] = prompt_ids[: known + 1]
        self._idle.traffic.prompt_cache_tokens += known
        return ""

    def keep(self, slot: Slot, traffic: KvTraffic, prefill_s: float) -> None:
        """Write what a slot holds to the cache, if its prompt took long to compute."""
        cache, store, sequence = self._cache, self._store, slot.sequence
        if cache is None or store is None or prefill_s < LEAST_S:
            return
        ids = np.array(slot.ids[: sequence.length], np.int32)
        try:
            if isinstance(cache, PromptTexts):
                store.settle(sequence)
                cache.write(ids, store.outline(sequence), store.contents(sequence))
            else:
                cache.write(ids, store.contents(sequence))
        except OSError as error:
            traffic.note(f"the prompt could not be written to the prompt cache: {error}")
