"""What goes into a forward pass, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgespec.system.records import dataclass

Logits = NDArray[np.float32]
TILE = 16
"""Neighbouring logits that share one maximum; the last tile of a row may be shorter."""
Rows = Literal["all", "last", "none"]
"""Which nodes' logits a pass computes."""
Progress = Callable[[int, int], None]
"""Called with (done, total) while something takes long: tokens of a prompt, tensors of a file."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, known when planning and never discovered later."""

    name: str
    bit_exact_rows: bool
    """A row's logits do not depend on what else is in the batch."""
    trees: bool
    sequences: bool
    """Several sequences in one pass, which reads the weights once for all of them."""
    early_exit: bool = False
    """Passes through the first layers only, which a whole pass goes on from."""
    draft_heads: bool = False
    """Passes leave what a draft head reads."""


@dataclass(slots=True)  # not frozen: that would triple the time it takes to make one
class TokenTree:
    """Tokens to be scored in one pass: `parents[i] < i`, and node 0, the root, has parent -1.

    The root stands at position `KvSequence.length`; a child one after its parent. A chain is a
    tree.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int16]
    states: NDArray[np.float32] | None = None
    """[nodes, width]: what a draft head reads beside the tokens, of the positions before them: what
    the model's passes left there, or the head's own (`Pass.hidden` of either). None for a model.
    """

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int] | NDArray[np.int32],
        states: NDArray[np.float32] | None = None,
    ) -> Self:
        """A tree without branches."""
        ids = np.asarray(tokens, dtype=np.int32)
        return cls(ids, np.arange(-1, len(ids) - 1, dtype=np.int16), states)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)  # not frozen, as above
class Pass:
    """What a pass found. Its arrays are the target's own: the next pass overwrites them."""

    logits: Logits
    """[rows, vocab] f32."""
    maxima: Logits | None = None
    """The largest of each tile of the logits, so that the best are found without reading the rest:
    [rows, ceil(vocab / TILE)] f32, NaN for a tile that holds one. None from a backend that does not
    find them.
    """
    hidden: NDArray[np.float32] | None = None
    """What all nodes [nodes, width] f32 left for a draft head (`HeadInput` in models/spec.py), or
    a head for its next token; None where nobody reads it.
    """
    seconds_saved: float = 0.0
    """What the pass had less to do because all of its nodes had left one early."""
    experts: int = 0
    """How many experts it read, those of all layers; 0 where none mix or the backend cannot tell.
    """


class CompiledPass(NamedTuple):
    """How a kernel computes passes over one sequence: entries (`system/addresses.py`) that take the
    table, a number of nodes and the committed length. Good until Python uses the target again.
    """

    table: int
    forward: int
    """Compute a pass over the first nodes of `tokens` and `parents`."""
    commit: int
    """Keep the first nodes of `path`, which starts at the root."""
    tokens: NDArray[np.int32]
    """[most nodes]"""
    parents: NDArray[np.int16]
    path: NDArray[np.int32]
    logits: Logits
    """[most nodes, vocab or more]; what lies past the vocabulary is no logit."""
    maxima: Logits
