"""Drafts from a smaller model with the same vocabulary.

"Fast Inference from Transformers via Speculative Decoding" (Leviathan et al.) and "Accelerating
Large Language Model Decoding with Speculative Sampling" (Chen et al.), but verified as all drafts
are here: the small model draws with the target's noise, so its tokens are either the target's own
or wrong.

Of a text longer than its sequence it keeps the first few tokens and the last ones, and reads half
of these anew when there is no room for more: a cache of constant size, as in "LongSpec:
Long-Context Lossless Speculative Decoding with Efficient Drafting and Verification", at positions
without gaps, as in "Efficient Streaming Language Models with Attention Sinks".
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Logits, Pass, TokenTree
from edgespec.backends.sequence import KvSequence, SequenceHost
from edgespec.drafting.model.model_drafter import LONGEST, Draw, ModelDrafter, with_maxima
from edgespec.drafting.tree import DraftTree
from edgespec.memory.plan.sizing import DRAFT_SINKS

MOST_NODES = 8
"""Nodes of a pass of the small model: tokens it has to catch up with, the last one's logits asked
for. Where there are more, it prefills.
"""

READ_AT_ONCE = 64
"""Tokens that first layers read besides as many as were written: a few plain passes."""


class DraftModelDrafter(ModelDrafter):
    """Proposes what another model would say; the sequence, in that model's target, is its own."""

    name = "draft-model"

    def __init__(
        self,
        sequence: KvSequence,
        vocab_size: int,
        ids: NDArray[np.int32] | None = None,
        *,
        source: int = 1,
        slides: bool = False,
    ) -> None:
        """`ids` are the small model's for each of the target's tokens; None: the same. `slides`:
        texts are longer than the sequence can be.
        """
        super().__init__(vocab_size, source=source)
        self._small = sequence
        self._vocab_size = vocab_size
        self._ids = ids
        self._slides = slides
        self._text: list[int] = []
        """What it keeps of the text."""
        self._fed: list[int] = []
        """What the sequence has committed."""

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self._text = []
        super().reset(tokens)

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super().extend(tokens)
        self._text.extend(int(token) for token in tokens)
        context = self._small.target.context_length
        if self._slides and len(self._text) + 2 * LONGEST > context:
            del self._text[DRAFT_SINKS : -max((context - DRAFT_SINKS) // 2, 1)]

    def look(self, paths: Sequence[Sequence[int]]) -> list[Draw | None]:
        """What follows the text and each of these paths, none the beginning of another, in one
        pass; None where nothing can be said.

        Together they may have `MOST_NODES` - 1 nodes below what they share. What is computed of the
        first stays; going from one path to another computes again where they differ.
        """
        num_text, first = len(self._text), [*paths[0]]
        if num_text + max(map(len, paths)) >= self._small.target.context_length:
            return [None] * len(paths)
        shared = len(os.path.commonprefix([[*path] for path in paths]))
        tokens, parents, ends = branches([[*path][shared:] for path in paths])
        self._text += first[:shared]
        try:
            rest = self._catch_up(MOST_NODES - len(tokens))
        finally:
            del self._text[num_text:]
        tree = TokenTree(
            self._theirs(rest + tokens),
            np.array([*range(-1, len(rest) - 1), *(len(rest) + p for p in parents)], np.int16),
        )
        one = len(paths) == 1
        found = self._small.forward(tree, rows="last" if one else "all")
        rows = [0] if one else [len(rest) + end for end in ends]
        draws = [
            self._draw_at(self._position + len(path) + 1, *self._rows(found, row))
            for path, row in zip(paths, rows, strict=True)
        ]
        kept, node = [], ends[0]
        while node >= 0:
            kept.append(len(rest) + node)
            node = parents[node]
        self._small.commit([*range(len(rest)), *kept[::-1]])
        self._fed += rest + first[shared:]
        return draws

    def try_out(self) -> None:
        """A pass over one node, of which nothing stays: to be timed."""
        self._small.forward(TokenTree.chain([0]), rows="last")
        self._small.expect(())

    def forget(self) -> None:
        """Read the text anew: what the sequence holds is not known any more."""
        self._small.truncate(0)
        self._fed.clear()
        self._num_drafts = 0

    def nothing(self) -> DraftTree:
        """The tree of a step without drafts."""
        return DraftTree.root(self._last)

    @property
    def target(self) -> SequenceHost:
        """What computes the small model."""
        return self._small.target

    def _room(self) -> int:
        context = self._small.target.context_length
        return max(0, min(LONGEST, context - len(self._text)))

    def _row(self, token: int, depth: int) -> tuple[Logits, Logits]:
        new = self._catch_up() if depth == 0 else [token]
        found = self._small.forward(TokenTree.chain(self._theirs(new)), rows="last")
        rows = self._rows(found, 0)
        self._small.commit(range(len(new)))
        self._fed += new
        return rows

    def _rows(self, found: Pass, row: int) -> tuple[Logits, Logits]:
        """One row of a pass, by the target's own ids, and its maxima."""
        maxima, logits = found.maxima, found.logits[row : row + 1]
        if self._ids is not None:
            return with_maxima(logits[:, self._ids], None)
        if logits.shape[1] > self._vocab_size:  # padding that the target has not got
            return with_maxima(logits[:, : self._vocab_size], None)
        return with_maxima(logits, None if maxima is None else maxima[row : row + 1])

    def _catch_up(self, most_nodes: int = MOST_NODES) -> list[int]:
        """Forget what the text did not become, and prefill but for the last few; these."""
        same, self.late_s = self._small.truncate(self._num_read()), 0.0
        del self._fed[same:]
        rest = self._text[same:]
        if len(rest) > most_nodes:
            start = time.perf_counter()
            self._small.prefill(self._theirs(rest[:-1]))
            self._fed += rest[:-1]
            rest, self.late_s = rest[-1:], time.perf_counter() - start
        return rest

    def _num_read(self) -> int:
        """How many of the text's tokens the sequence holds, but for the last."""
        most = min(len(self._fed), self._small.length, len(self._text) - 1)
        same = 0
        if self._fed[:most] == self._text[:most]:
            return most
        while self._fed[same] == self._text[same]:
            same += 1
        return same

    def _theirs(self, tokens: list[int]) -> NDArray[np.int32]:
        """The small model's ids of these tokens; one that it has not got is any other."""
        found = np.array(tokens, np.int32)
        if self._ids is not None:
            found = self._ids[found]
        return np.minimum(found, np.int32(self._small.target.spec.vocab_size - 1))

    @property
    def size_bytes(self) -> int:
        """Bytes of its arrays and lists; the model's own are the plan's."""
        ids = 0 if self._ids is None else self._ids.nbytes
        return super().size_bytes + ids + 8 * (len(self._text) + len(self._fed))


class FirstLayersDrafter(DraftModelDrafter):
    """Proposes what the target's first layers say, as a model with a text of its own.

    A short prompt is read before the reply begins, because no proposal could pay for it; where none
    was asked for in the last text, it is not. A long one is read once the reply is about as long.
    """

    name = "early-exit"
    _num_written = 0
    """Tokens since the text was told anew."""
    _was_asked = True
    """In the last text; at first it is believed."""

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super().reset(tokens)
        self._num_written = 0
        few = len(self._text) > 1 and 1 < self._behind() <= READ_AT_ONCE
        if few and self._was_asked and super()._room():
            self._was_asked = False
            self._catch_up(1)

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super().extend(tokens)
        self._num_written += len(tokens)

    def _behind(self) -> int:
        return len(self._text) - self._num_read()

    def _room(self) -> int:
        self._was_asked, behind = True, self._behind()
        return super()._room() if behind <= READ_AT_ONCE + 2 * self._num_written else 0


def branches(paths: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Paths as one tree below a node that is not part of it: tokens, parents (-1: that node), and
    where each path ends.
    """
    tokens: list[int] = []
    parents: list[int] = []
    places: dict[tuple[int, int], int] = {}
    ends = []
    for path in paths:
        node = -1
        for token in path:
            if (node, token) not in places:
                places[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = places[node, token]
        ends.append(node)
    return tokens, parents, ends
