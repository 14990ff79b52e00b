"""Drafts by a head that reads the model's hidden states: an MTP block, an EAGLE-3 head, or an
assistant of Gemma 4.

"DeepSeek-V3 Technical Report", section 2.2, and "EAGLE-3: Scaling up Inference Acceleration of
Large Language Models via Training-Time Test". The first draft comes of states that the model left,
the next ones of the head's own. Chains grow while a token more pays, with runners-up where the head
is unsure ("EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees"); tokens are
drawn with the target's noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Logits, Pass
from edgespec.backends.sequence import KvSequence
from edgespec.drafting.model.chains import MEAN
from edgespec.drafting.model.head_text import HeadText
from edgespec.drafting.model.model_drafter import LONGEST, ModelDrafter, with_maxima
from edgespec.drafting.model.waiting_states import LentText
from edgespec.drafting.proposal import Proposal
from edgespec.drafting.rates import RATE
from edgespec.drafting.tree import DraftTree, Path


class HeadDrafter(ModelDrafter):
    """Proposes what a head says; `head` is its own sequence in the head's target."""

    follows = True

    def __init__(
        self,
        name: str,
        head: KvSequence,
        width: int,
        vocab_size: int,
        ids: NDArray[np.int32] | None = None,
        *,
        source: int = 1,
    ) -> None:
        """`width` numbers are left for it at each position; `ids` are the model's of the head's
        tokens, None where they are the same.
        """
        super().__init__(vocab_size, source=source, ids=ids)
        self.name = name
        self._text: HeadText | LentText = (
            LentText(head, width) if head.target.spec.borrows_keys else HeadText(head, width)
        )
        self._before: Pass | None = None
        """The head's last pass."""

    def attach(self, sequence: KvSequence, prices: NDArray[np.float64]) -> None:
        super().attach(sequence, prices)
        self._text.attach(sequence)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super().reset(tokens)
        self._text.reads_prompts = False  # until it is asked in this text

    def propose_after(self, path: Path, max_nodes: int, scratch: Proposal) -> DraftTree:
        """What the head says after a path, each token of which it goes through first."""
        del scratch
        worth = path.chance * self._rates[MEAN, RATE] * self.value_s()
        if len(path.tokens) > LONGEST or worth < (len(path.tokens) + 1) * self._step_s:
            self._num_drafts = 0
            return DraftTree.root(path.tokens[-1])
        return self._propose(path, max_nodes)

    def _room(self) -> int:
        self._text.reads_prompts = True
        return max(0, min(self._text.room, LONGEST + len(self._path.tokens)))

    def _row(self, token: int, depth: int) -> tuple[Logits, Logits]:
        if depth:
            assert self._before is not None
            found = self._text.go_on(token, self._before)
        else:
            found = self._text.catch_up(token)
            self.late_s = self._text.late_s
            path = self._path.tokens
            for place, each in enumerate(path):
                found = self._text.go_on(each, found, is_asked=place == len(path) - 1)
        self._before = found
        return with_maxima(found.logits, found.maxima)
