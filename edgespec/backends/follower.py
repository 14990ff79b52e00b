"""Who reads along with a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Follower(Protocol):
    """What reads along with a sequence: a draft head, which needs every position's hidden state."""

    def passed(self, tokens: NDArray[np.int32], hidden: NDArray[np.float32]) -> None:
        """A pass went over these nodes and left [nodes, width], good until the next."""

    def committed(self, length: int, path: Sequence[int]) -> None:
        """Of them, these follow the first `length` positions."""

    def prefilled(
        self, length: int, tokens: NDArray[np.int32], hidden: NDArray[np.float32]
    ) -> None:
        """These follow the first `length` positions, and left [tokens, width]."""

    def truncated(self, length: int) -> None:
        """Only the first `length` positions are as they were."""
