"""Drafts from a smaller model with the same vocabulary.

"Fast Inference from Transformers via Speculative Decoding" (Leviathan et al.) and "Accelerating
Large Language Model Decoding with Speculative Sampling" (Chen et al.), but verified as all drafts
are here: the small model draws with the target's noise, so its tokens are either the target's own
or wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Logits, Target, TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.drafting.model_drafter import LONGEST, Draw, ModelDrafter, with_maxima

MOST_NODES = 8
"""Nodes of a pass of the small model: tokens it has to catch up with, the last one's logits asked
for. Where there are more, it prefills.
"""


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
    ) -> None:
        """`ids` are the small model's for each of the target's tokens; None: the same."""
        super().__init__(vocab_size, source=source)
        self._small = sequence
        self._vocab_size = vocab_size
        self._ids = ids
        self._text: list[int] = []
        self._fed: list[int] = []
        """What the sequence has committed."""

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self._text = []
        super().reset(tokens)

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super().extend(tokens)
        self._text.extend(int(token) for token in tokens)

    def look(self, path: Sequence[int]) -> Draw | None:
        """What follows the text and these tokens; None where nothing can be said.

        Going from one path to another computes again where they differ, in one pass if that is few.
        """
        num_text = len(self._text)
        if num_text + len(path) >= self._small.target.context_length:
            return None
        self._text += path
        try:
            return self._draw_at(self._position + len(path) + 1, *self._row(0, 0))
        finally:
            del self._text[num_text:]

    def forget(self) -> None:
        """Read the text anew: what the sequence holds is not known any more."""
        self._small.truncate(0)
        self._fed.clear()

    @property
    def target(self) -> Target:
        """What computes the small model."""
        return self._small.target

    def _room(self) -> int:
        context = self._small.target.context_length
        return max(0, min(LONGEST, context - len(self._text)))

    def _row(self, token: int, depth: int) -> tuple[Logits, Logits]:
        new = self._catch_up() if depth == 0 else [token]
        target = self._small.target
        chain = TokenTree.chain(self._theirs(new))
        logits = target.forward_batch(((self._small, chain),), rows="last")
        maxima = target.maxima
        self._small.commit(range(len(new)))
        self._fed += new
        if self._ids is not None:
            return with_maxima(logits[:, self._ids], None)
        if logits.shape[1] > self._vocab_size:  # padding that the target has not got
            return with_maxima(logits[:, : self._vocab_size], None)
        return with_maxima(logits, maxima)

    def _catch_up(self) -> list[int]:
        """Forget what the text did not become, and prefill but for the last few; these."""
        most = min(len(self._fed), self._small.length, len(self._text) - 1)
        same = 0
        if self._fed[:most] == self._text[:most]:
            same = most
        else:
            while self._fed[same] == self._text[same]:
                same += 1
        self._small.truncate(same)
        del self._fed[same:]
        rest = self._text[same:]
        if len(rest) > MOST_NODES:
            self._small.prefill(self._theirs(rest[:-1]))
            self._fed += rest[:-1]
            rest = rest[-1:]
        return rest

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
