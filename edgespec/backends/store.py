"""Where a target keeps what its sequences have committed, and how that goes elsewhere and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.sequence import KvSequence
from edgespec.memory.kv.arena import KvArena
from edgespec.memory.kv.kv_file import Outline as Outline


class SequenceStore(Protocol):
    """Blocks of keys and values of one or several shapes of attention, and recurrent states."""

    only: KvArena | None
    """The arena of a model that has one and keeps all positions in it: there, sequences share
    blocks with files and are read back in part.
    """

    @property
    def size_bytes(self) -> int:
        """Bytes allocated now."""

    def when_full(self, make_room: Callable[[], bool]) -> None:
        """Call this when all that was planned is in use: it gives up an idle sequence, and is False
        when there is none.
        """

    def settle(self, sequence: KvSequence) -> None:
        """Finish what was put off, before a sequence is set aside."""

    def outline(self, sequence: KvSequence) -> Outline:
        """What `contents` are."""

    def contents(self, sequence: KvSequence) -> Sequence[NDArray[np.uint8]]:
        """All bytes of a settled sequence, in place."""

    def begin(self, sequence: KvSequence, outline: Outline) -> Sequence[NDArray[np.uint8]]:
        """Forget everything and make room for such contents; they are to be filled, and then
        `KvSequence.filled` called. KvFileError for an outline that no such sequence has,
        BudgetError when there is no room.
        """

    def returns_to(self, outline: Outline, length: int) -> int:
        """`KvSequence.rewindable` of a sequence that has begun with such an outline."""

    def give_back(self) -> None:
        """Free memory that no sequence uses."""
