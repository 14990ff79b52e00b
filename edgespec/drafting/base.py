"""What a drafter is: an object that proposes a tree of next tokens and learns what became of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgespec.backends.sequence import KvSequence
    from edgespec.drafting.proposal import Proposal
    from edgespec.verification.sampling import SamplingParams


class Path(NamedTuple):
    """Tokens that are hoped to follow the text, one after the other."""

    tokens: list[int]
    chance: float = 1.0
    """How likely all of them do."""
    node: int = 0
    """The last one's in the tree that says so."""


NO_PATH = Path([])


@dataclass(slots=True)  # not frozen: that would triple the time it takes to make one
class DraftTree:
    """Proposed continuations in flat arrays; node 0 is the last accepted token, its parent -1.

    tokens int32 [n]; parents int16 [n], `parents[i] < i`; p_accept float32 [n], the drafter's
    estimate that the node is accepted given that its parent was (1.0 for node 0); sources uint8
    [n], an index into the engine's table of drafters (0 for the root).
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int16]
    p_accept: NDArray[np.float32]
    sources: NDArray[np.uint8]

    @classmethod
    def root(cls, token: int) -> Self:
        """A tree that proposes nothing: one pass over it is plain decoding."""
        return cls(
            np.array([token], np.int32),
            np.array([-1], np.int16),
            np.ones(1, np.float32),
            np.zeros(1, np.uint8),
        )

    @classmethod
    def chain(
        cls, root: int, tokens: Sequence[int], p_accept: Sequence[float], source: int
    ) -> Self:
        """A tree without branches: `tokens` follow `root` one after the other."""
        num_nodes = len(tokens) + 1
        return cls(
            np.array([root, *tokens], np.int32),
            np.arange(-1, num_nodes - 1, dtype=np.int16),
            np.array([1.0, *p_accept], np.float32),
            np.array([0] + [source] * len(tokens), np.uint8),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, num_nodes: int) -> DraftTree:
        """The first `num_nodes` nodes, root included: a tree, as parents precede their children."""
        return DraftTree(
            self.tokens[:num_nodes],
            self.parents[:num_nodes],
            self.p_accept[:num_nodes],
            self.sources[:num_nodes],
        )

    def surest(self) -> Path:
        """The path that follows the first child of each node, which is its surest."""
        tokens, chance, last = [], 1.0, 0
        for node, parent in enumerate(self.parents.tolist()):
            if parent == last and node:
                tokens.append(int(self.tokens[node]))
                chance, last = chance * float(self.p_accept[node]), node
        return Path(tokens, chance, last)

    def end_of_knowledge(self) -> Path:
        """The part of the surest path whose end is likeliest to come and not to be followed by what
        the tree says.
        """
        tokens: list[int] = []
        chance, best = 1.0, NO_PATH
        most, last = 0.0, 0
        for node, parent in enumerate([*self.parents.tolist(), None]):
            if (parent == last and node) or parent is None:
                given = 0.0 if parent is None else float(self.p_accept[node])
                if chance * (1.0 - given) > most:
                    most, best = chance * (1.0 - given), Path([*tokens], chance, last)
                if parent is not None:
                    tokens.append(int(self.tokens[node]))
                    chance, last = chance * given, node
        return best

    def best_chain(self) -> DraftTree:
        """The path that follows the first child of each node, which is its surest: for targets
        that score chains only.
        """
        path = [0]
        for node, parent in enumerate(self.parents.tolist()):
            if parent == path[-1]:
                path.append(node)
        if len(path) == len(self):
            return self
        parents = np.arange(-1, len(path) - 1, dtype=np.int16)
        return DraftTree(self.tokens[path], parents, self.p_accept[path], self.sources[path])


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The target's likeliest next tokens at each node of a verified tree, rejected nodes too."""

    tokens: NDArray[np.int32]
    """[nodes, k], likeliest first."""
    logits: NDArray[np.float32]
    """[nodes, k], before temperature and penalties."""


@dataclass(slots=True)
class StepOutcome:
    """What verification made of a tree: accepted nodes, root first, and the token after them."""

    tree: DraftTree
    path: list[int]
    bonus: int
    new_tokens: Sequence[int] | NDArray[np.int32] = ()
    """Accepted draft tokens, then the bonus token: what the step appends to the text."""
    top: TopTokens | None = None
    """Present when some drafter's `wants_top` asks for it."""


class Drafter(ABC):
    """Proposes continuations of the text it was fed; owns its stores and nothing else."""

    name: str
    wants_top = 0
    """How many of the target's likeliest tokens per node `observe` needs to see."""
    _saved_s = 0.0

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
