"""The seam between the decode loop and whatever computes logits.

A backend opens a model and gives back a `Target`. The decode loop asks a target five things:
compute the logits of a small tree of tokens (`forward`), keep one path of it (`commit`), forget
positions (`truncate`), remember and return (`snapshot`, `restore`), and what a forward pass costs
(`cost_curve`). Shared code here checks arguments and phrases errors; a backend fills the hooks
whose names start with an underscore.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import BackendError, ContextOverflowError
from edgespec.models.spec import ModelSpec

_CURVE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
Logits = NDArray[np.float32]
TILE = 16
"""Neighbouring logits that share one maximum; the last tile of a row may be shorter."""
Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all) while a prompt is prefilled."""


@dataclass(slots=True)  # not frozen: that would triple the time it takes to make one
class TokenTree:
    """Tokens to be scored in one pass: `parents[i] < i`, and node 0, the root, has parent -1.

    The root stands at position `Target.length`; a child one after its parent. A chain is a tree.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int16]

    @classmethod
    def chain(cls, tokens: Sequence[int] | NDArray[np.int32]) -> Self:
        """A tree without branches."""
        ids = np.asarray(tokens, dtype=np.int32)
        return cls(ids, np.arange(-1, len(ids) - 1, dtype=np.int16))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, known when planning and never discovered later."""

    name: str
    bit_exact_rows: bool
    """A row's logits do not depend on what else is in the batch."""
    trees: bool


class Target(ABC):
    """One open model with its KV cache: `length` positions are committed."""

    capabilities: Capabilities

    def __init__(self, spec: ModelSpec, context_length: int, max_nodes: int) -> None:
        self.spec = spec
        self.context_length = context_length
        self.max_nodes = max_nodes
        """Most nodes one forward pass may hold, the root included."""
        self.length = 0
        self._pending = 0
        self._parents: NDArray[np.int16] = np.zeros(0, np.int16)
        self._closed = False
        self._curve: dict[int, float] | None = None

    def forward(self, tree: TokenTree, *, rows: Literal["all", "last", "none"] = "all") -> Logits:
        """Score a tree on top of the committed positions.

        Returns logits, [n, vocab] f32 ("all"), [1, vocab] ("last": of the last node) or [0, vocab]
        ("none"). The array is the target's own and is overwritten by the next call. Nothing is
        committed. Raises ContextOverflowError when the tree does not fit, BackendError when it is
        malformed.
        """
        self._check_open()
        num_nodes = len(tree)
        if not 1 <= num_nodes <= self.max_nodes:
            raise BackendError(
                f"a forward pass was asked for {num_nodes} nodes; "
                f"this target takes 1 to {self.max_nodes}"
            )
        if self.length + num_nodes > self.context_length:
            raise ContextOverflowError(
                f"{self.length} committed and {num_nodes} new tokens do not fit a context of "
                f"{self.context_length} tokens; load with a larger --context"
            )
        steps = np.arange(num_nodes)
        if tree.parents[0] != -1 or np.any(tree.parents[1:] < 0) or np.any(tree.parents >= steps):
            raise BackendError(
                "a token tree's parents must come before their children, and only node 0 is a root"
            )
        self._check_tokens(tree.tokens)
        self._pending = 0
        logits = self._forward(tree, rows)
        self._pending, self._parents = num_nodes, tree.parents.copy()
        return logits

    @property
    def maxima(self) -> Logits | None:
        """The largest of each tile of the logits that `forward` returned last, so that the best
        ones are found without reading the rest.

        [rows, ceil(vocab / TILE)] f32, NaN for a tile that holds one; the target's own, as the
        logits are. None from a backend that does not find them.
        """
        return None

    def commit(self, path: Sequence[int]) -> None:
        """Keep the KV of these nodes of the last forward pass, a path from the root down, and drop
        the rest in place.
        """
        parents = (-1, *path[:-1])
        alone = len(path) == 1 and path[0] == 0 and self._pending > 0  # plain decoding, every step
        if not alone and any(
            not 0 <= node < self._pending or self._parents[node] != parent
            for node, parent in zip(path, parents, strict=False)
        ):
            raise BackendError(
                f"commit got {list(path)} after a forward pass of {self._pending} nodes; "
                "it takes a path that starts at the root, each node the parent of the next"
            )
        self._commit(path)
        self.length += len(path)
        self._pending = 0

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""
        if not 0 <= length <= self.length:
            raise BackendError(
                f"cannot truncate to {length} positions: {self.length} are committed"
            )
        self._truncate(length)
        self.length = length
        self._pending = 0

    def prefill(
        self,
        tokens: Sequence[int] | NDArray[np.int32],
        *,
        progress: Progress | None = None,
        chunk: int | None = None,
    ) -> None:
        """Commit `tokens` without looking at their logits, in chunks of at most `chunk` (or
        max_nodes) tokens.
        """
        self._check_open()
        ids = np.asarray(tokens, dtype=np.int32)
        self._check_tokens(ids)
        self._pending = 0
        if self.length + len(ids) > self.context_length:
            raise ContextOverflowError(
                f"the prompt needs {self.length + len(ids)} tokens and the context holds "
                f"{self.context_length}; shorten the prompt or load with a larger --context"
            )
        step = min(chunk or self.prefill_chunk, self.prefill_chunk)
        for start in range(0, len(ids), step):
            part = ids[start : start + step]
            self._prefill(part)
            self.length += len(part)
            if progress is not None:
                progress(min(start + step, len(ids)), len(ids))

    @property
    def prefill_chunk(self) -> int:
        """Most tokens one prefill step may hold."""
        return self.max_nodes

    def cost_curve(self, progress: Progress | None = None) -> dict[int, float]:
        """Seconds of one forward pass by number of nodes, measured once on the committed positions.

        Medians of a few alternating passes over chains; nothing stays committed.
        """
        if self._curve is None:
            self._curve = self._measure_cost(progress)
        return self._curve

    def curve_sizes(self) -> tuple[int, ...]:
        """Numbers of nodes the cost curve is measured for."""
        room = min(self.max_nodes, self.context_length - self.length)
        return tuple(size for size in _CURVE_SIZES if size <= room)

    def _measure_cost(self, progress: Progress | None, trials: int = 5) -> dict[int, float]:
        sizes = self.curve_sizes()
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        trees = {
            size: TokenTree.chain([(7 * i) % self.spec.vocab_size for i in range(size)])
            for size in sizes
        }
        for trial in range(trials + 1):
            for size in sizes:
                start = time.perf_counter()
                self.forward(trees[size])
                if trial:  # the first round warms caches and compiles kernels
                    seconds[size].append(time.perf_counter() - start)
            if progress is not None:
                progress(trial + 1, trials + 1)
        self._pending = 0
        return {size: statistics.median(values) for size, values in seconds.items()}

    def close(self) -> None:
        """Give back everything this target holds; using it afterwards is an error."""
        if not self._closed:
            self._closed = True
            self._close()

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("this target was closed and holds no weights; load the model again")

    def _check_tokens(self, tokens: NDArray[np.int32]) -> None:
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.spec.vocab_size:
            raise BackendError(f"token ids must lie in 0..{self.spec.vocab_size - 1}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def snapshot(self) -> Any:
        """A copy of the committed state that `restore` takes back."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Return to the state of a snapshot of this target."""

    @abstractmethod
    def _forward(self, tree: TokenTree, rows: Literal["all", "last", "none"]) -> Logits: ...

    def _prefill(self, tokens: NDArray[np.int32]) -> None:
        """Compute and keep the KV of a chain; `length` still counts the positions before it."""
        self._forward(TokenTree.chain(tokens), "none")
        self._commit(range(len(tokens)))

    @abstractmethod
    def _commit(self, path: Sequence[int]) -> None: ...

    def _truncate(self, length: int) -> None:
        """Most backends need nothing here: positions past `length` are overwritten."""
        del length

    def _close(self) -> None:  # noqa: B027 (most backends need nothing here either)
        """Release memory and files."""
