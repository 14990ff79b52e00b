"""Texts that nobody writes at: their keys, values and states stay in memory while it has room.

Each conversation has a text of its own, and so has whatever is written without one. A text is put
here when another takes its place in the engine's slot, and comes back when it is written on. What
it holds counts against the plan like anything else: when all is taken, or memory is short, the text
idle longest is spilled to a file, and where that fails forgotten and computed again. The text of a
reply depends on none of this: what comes back are the same bytes, or those the same tokens give
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.backends.sequence import KvSequence
from edgespec.backends.store import Outline, SequenceStore
from edgespec.engine.slot import Slot, num_common
from edgespec.errors import EdgeSpecError, KvFileError
from edgespec.memory.kv.arena import BLOCK
from edgespec.memory.kv.kv_file import KvHeader
from edgespec.memory.kv.saved_prefixes import Prefix, blocks, fill
from edgespec.memory.kv.spill import SpillFolder
from edgespec.system.records import dataclass

NO_PREFIXES = "this backend keeps keys and values itself"
"""Why prefixes cannot be saved and used."""


@dataclass(slots=True)
class KvTraffic:
    """What became of what idle conversations hold while a reply was written."""

    spilled_tokens: int = 0
    restored_tokens: int = 0
    forgotten_tokens: int = 0
    prompt_cache_tokens: int = 0
    notes: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, Any]:
        """The numbers under their names in the stats."""
        return {
            "spilled_tokens": self.spilled_tokens,
            "restored_tokens": self.restored_tokens,
            "forgotten_tokens": self.forgotten_tokens,
            "prompt_cache_tokens": self.prompt_cache_tokens,
        }

    def note(self, sentence: str) -> None:
        """Keep what went wrong, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


@dataclass(frozen=True, slots=True)
class Spilled:
    """A file with what a sequence held."""

    path: Path
    header: KvHeader
    outline: Outline


@dataclass(slots=True)
class IdleSequence:
    """Token ids, and what is kept of them: in an idle sequence, or in a file and it is empty."""

    ids: list[int]
    sequence: KvSequence
    is_saved: bool = False
    """A saved prefix: the blocks are its file's pages, and nobody's loss."""
    spilled: Spilled | None = None

    def common(self, prompt_ids: Sequence[int]) -> int:
        """How many positions in memory a prompt, but for its last token, begins with."""
        return num_common(self.ids, prompt_ids, self.sequence.length)


@dataclass(slots=True)
class IdleSequences:
    """Idle texts by their owners, the one idle longest first; used by one thread at a time, but for
    `discard`.
    """

    target: Target
    folder: SpillFolder | None
    """Where texts are spilled; None forgets them."""
    kind: Callable[[], bytes]
    """What makes keys and values of this engine worth nothing to another; 32 bytes."""
    traffic: KvTraffic = field(default_factory=KvTraffic)
    """What came and went since the last request began."""
    _texts: dict[Hashable, IdleSequence] = field(default_factory=dict)
    _ended: deque[Hashable] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if self.target.store is not None:
            self.target.store.when_full(self.make_room)

    def switch(self, slot: Slot, owner: Hashable, prompt_ids: Sequence[int]) -> None:
        """Let a slot work on an owner's text, as far as the prompt goes on with it; None is
        whatever is written without a conversation.
        """
        if slot.owner == owner:
            return
        if self.target.store is not None:
            self._put(slot, self.target.store)
        slot.owner = owner
        kept = self._texts.pop(owner, None)
        if kept is None:
            return
        try:
            if kept.spilled is None:
                slot.sequence.swap(kept.sequence)
                slot.ids[:] = kept.ids
            else:
                self._restore(kept.spilled, kept.ids, slot, prompt_ids)
        finally:
            self._remove(kept)

    def texts(self) -> Iterator[IdleSequence]:
        """Those that are in memory."""
        return (text for text in self._texts.values() if text.sequence.length)

    def _put(self, slot: Slot, store: SequenceStore) -> None:
        if slot.sequence.length:
            store.settle(slot.sequence)
            idle = self.target.idle_sequence()
            slot.sequence.swap(idle)
            replaced = self._texts.pop(slot.owner, None)  # of nobody's texts one is kept
            if replaced is not None:
                self._remove(replaced)
            self._texts[slot.owner] = IdleSequence(list(slot.ids), idle)
        slot.ids.clear()

    def offer(self, prefix: Prefix, prompt_ids: Sequence[int], known: int) -> None:
        """Let a prompt begin like a saved prefix, if that is more than the `known` positions that
        its slot has, or another text in memory.
        """
        store = self.target.store
        if store is None:
            self.traffic.note(f"the prefix {prefix.name} was computed: {NO_PREFIXES}")
            return
        ids = prefix.header.ids[: self.target.context_length].tolist()
        known = max((text.common(prompt_ids) for text in self.texts()), default=known)
        if num_common(ids, prompt_ids, len(ids)) <= known:
            return
        self.drop_saved(prefix.name)
        idle = self.target.idle_sequence()
        try:
            self._begin(idle, prefix, len(ids), store)
            idle.filled(len(ids))
            self._texts[_saved(prefix.name)] = IdleSequence(ids, idle, is_saved=True)
        except EdgeSpecError as error:
            idle.close()
            self.traffic.note(f"the prefix {prefix.name} was computed again: {error}")

    def _begin(self, idle: KvSequence, prefix: Prefix, length: int, store: SequenceStore) -> None:
        """Give an empty sequence what was saved of a prefix's first positions."""
        arena, header = store.only, prefix.header
        block_bytes = 0 if arena is None else arena.block_bytes
        if header.kind != self.kind() or header.block_bytes != block_bytes:
            raise KvFileError(
                f"it was saved with {prefix.model} in another form: another file of that name, "
                "KV type, processor or version"
            )
        if arena is not None:
            for content in blocks(prefix, -(-length // BLOCK)):
                idle.state.append(content)
        elif prefix.outline is None or prefix.outline.length > length:
            raise KvFileError("it is longer than the context")
        else:
            fill(prefix, store.begin(idle, prefix.outline))

    def drop_saved(self, name: str) -> None:
        """Close a prefix's file."""
        text = self._texts.pop(_saved(name), None)
        if text is not None:
            self._remove(text)

    def make_room(self) -> bool:
        """Spill or forget the text idle longest; False when none is in memory."""
        for owner, text in self._texts.items():
            if text.sequence.length:
                self._give_up(owner, text)
                return True
        return False

    def spill(self) -> int:
        """Spill, or forget, all texts; returns how many bytes that gave back."""
        store = self.target.store
        if store is None:
            return 0
        before = store.size_bytes
        while self.make_room():
            pass
        store.give_back()
        return before - store.size_bytes

    def _give_up(self, owner: Hashable, text: IdleSequence) -> None:
        length = text.sequence.length
        try:
            if owner is not None and not text.is_saved and self.folder is not None:
                text.spilled = self._spill(text, self.folder)
                self.traffic.spilled_tokens += length
        except OSError as error:
            self.traffic.note(f"an idle conversation could not be spilled: {error}")
        text.sequence.truncate(0)
        if text.spilled is None:
            self.traffic.forgotten_tokens += 0 if text.is_saved else length
            del self._texts[owner]

    def _spill(self, text: IdleSequence, folder: SpillFolder) -> Spilled:
        store, sequence = self.target.store, text.sequence
        assert store is not None
        outline, contents = store.outline(sequence), store.contents(sequence)
        header = self.header(text.ids[: outline.length], contents)
        return Spilled(folder.write(header, contents), header, outline)

    def header(self, ids: Sequence[int], contents: Sequence[NDArray[np.uint8]]) -> KvHeader:
        """What a file says of the blocks that a sequence with these ids holds."""
        arena = None if self.target.store is None else self.target.store.only
        tokens = np.asarray(ids, np.int32)
        if arena is not None:
            return KvHeader(self.kind(), arena.block_bytes, tokens)
        return KvHeader(self.kind(), 0, tokens, sizes=tuple(map(len, contents)))

    def _restore(
        self, spilled: Spilled, ids: Sequence[int], slot: Slot, prompt_ids: Sequence[int]
    ) -> None:
        """Read what a prompt goes on with into a slot, which is empty; what it shares with a
        text in memory is shared again.
        """
        store, sequence = self.target.store, slot.sequence
        assert self.folder is not None and store is not None
        length = num_common(ids, prompt_ids, spilled.outline.length)
        common, source = 0, sequence
        for text in self.texts():
            known = text.sequence.rewindable(text.common(prompt_ids))
            if known > common:
                common, source = known, text.sequence
        if common >= length:
            return  # the file has nothing that is not here
        if store.only is None:  # windows and states are read back whole, and share nothing
            common, length = 0, spilled.outline.length
        common -= common % BLOCK
        if common:
            sequence.begin_like(source, common)
        slot.ids[:] = ids
        try:
            if store.only is None:
                blocks = store.begin(sequence, spilled.outline)
            else:
                blocks = sequence.state.own_contents(common, length)
            self.folder.read(spilled.path, spilled.header, common // BLOCK, blocks)
            sequence.filled(length)
            self.traffic.restored_tokens += length - common
        except (OSError, EdgeSpecError) as error:
            sequence.truncate(common)
            self.traffic.note(f"spilled keys and values were computed again: {error}")

    def discard(self, owner: Hashable) -> None:
        """An owner has ended: its text goes at the next `sweep`. May be called at any time."""
        self._ended.append(owner)

    def sweep(self, slots: Sequence[Slot], written: Sequence[Slot] = ()) -> None:
        """Forget the texts of owners that have ended, but for those being written."""
        kept = [owner for owner in self._ended if any(slot.owner == owner for slot in written)]
        while self._ended:
            owner = self._ended.popleft()
            if owner in kept:
                continue
            for slot in slots:
                if slot.owner == owner:
                    slot.owner = None
                    slot.sequence.truncate(0)
                    slot.ids.clear()
            text = self._texts.pop(owner, None)
            if text is not None:
                self._remove(text)
        self._ended.extend(kept)

    def close(self) -> None:
        """Forget all texts."""
        while self._texts:
            self._remove(self._texts.popitem()[1])

    def _remove(self, text: IdleSequence) -> None:
        text.sequence.close()
        if text.spilled is not None and self.folder is not None:
            self.folder.remove(text.spilled.path)


def _saved(name: str) -> Hashable:
    """The owner that a saved prefix is kept under."""
    return ("prefix", name)
