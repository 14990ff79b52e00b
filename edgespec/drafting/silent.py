"""The drafter that proposes nothing: plain decoding by the same loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter, DraftTree


class SilentDrafter(Drafter):
    """Remembers the last token and proposes no other."""

    name = "none"

    def __init__(self) -> None:
        self._last = 0

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self._last = int(tokens[-1])

    def extend(self, tokens: Sequence[int]) -> None:
        self._last = int(tokens[-1])

    def propose(self, max_nodes: int) -> DraftTree:
        return DraftTree.root(self._last)

    @property
    def size_bytes(self) -> int:
        return 0
