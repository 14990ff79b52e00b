"""What a drafter is: an object that proposes a tree of next tokens and learns what became of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import Proposal
from edgespec.drafting.tree import DraftTree, Path, StepOutcome

if TYPE_CHECKING:
    from edgespec.backends.sequence import KvSequence
    from edgespec.verification.sampling import SamplingParams


class Drafter(ABC):
    """Proposes continuations of the text it was fed; owns its stores and nothing else."""

    name: str
    wants_top = 0
    """How many of the target's likeliest tokens per node `observe` needs to see."""
    _saved_s = 0.0
    late_s = 0.0
    """Seconds of the last proposal that went into reading text for which it had not been asked."""

    notes: tuple[str, ...] = ()
    """What went wrong in this reply and cost time alone."""
    costly = False
    """Its proposals cost something, so that it has an account of its own in the market."""
    follows = False
    """It can propose what comes after tokens that are only hoped for."""

    def attach(self, sequence: KvSequence, prices: NDArray[np.float64]) -> None:
        """The text lies in this sequence, and a pass over n nodes takes about prices[n - 1]
        seconds, a table that is kept true; called once, before all else.
        """
        del sequence, prices

    def begin(self, sampling: SamplingParams) -> None:
        """A reply is to be written whose tokens are drawn like this; `reset` follows.

        Noise is a function of seed, position and token, so a drafter that knows the seed can add
        the target's own noise to what it thinks of the next tokens.
        """
        del sampling

    @abstractmethod
    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over with these tokens as the text so far."""

    @abstractmethod
    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """The text grew by these tokens."""

    @abstractmethod
    def propose(self, max_nodes: int) -> DraftTree:
        """At most `max_nodes` next tokens, likeliest path first, below the text's last token.

        The arrays may be the drafter's own and good until it is asked again.
        """

    def propose_after(self, path: Path, max_nodes: int, scratch: Proposal) -> DraftTree:
        """At most `max_nodes` tokens after the text and a path, whose last token is the root; only
        where `follows` says so. It grows in `scratch`, so that a drafter that was asked to
        `propose` still learns from that.
        """
        raise NotImplementedError(f"{self.name} proposes what follows the text alone")

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a verified step; `extend` is called separately."""
        del outcome

    @property
    def saved_s(self) -> float:
        """Seconds that the pass over the last proposal need not spend, because proposing did its
        work; less than 0 where drafting holds the pass up.
        """
        return self._saved_s

    @property
    def overlap(self) -> str:
        """Whether it drafted while the target verified, and why: one clause; "" where it cannot."""
        return ""

    def remember(self, tokens: NDArray[np.int32]) -> None:
        """A text is at hand that replies may quote: of any length, and not part of theirs."""
        del tokens

    def pause(self) -> None:  # noqa: B027 - most do nothing on their own
        """The reply has ended or was cancelled: what works on its own is to stop."""

    def shrink(self) -> int:
        """Make do with about half of the stores' bytes, for good, because memory is short; returns
        how many were given back. Called between two steps.
        """
        return 0

    def close(self) -> None:  # noqa: B027 - most keep nothing
        """The engine is closed: keep what is to outlive it."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes this drafter's stores hold."""
