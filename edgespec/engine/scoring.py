"""How likely a model finds a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.backends.passes import TokenTree
from edgespec.engine.reply import TokenLogprob
from edgespec.engine.slot import Slot
from edgespec.verification.logprobs import log_probabilities


def log_likelihoods(slot: Slot, ids: Sequence[int], num_top: int, step: int) -> list[TokenLogprob]:
    """Each token's log-probability after those before it, from the second on; at most `step` of
    them in a pass. The slot is empty afterwards.
    """
    sequence = slot.sequence
    sequence.truncate(0)
    slot.ids.clear()
    found: list[TokenLogprob] = []
    try:
        for start in range(0, len(ids) - 1, step):
            part = np.asarray(ids[start : min(start + step, len(ids) - 1)], np.int32)
            following = ids[start + 1 : start + 1 + len(part)]
            logits = sequence.target.forward([(sequence, TokenTree.chain(part))]).logits
            path = range(len(part))
            found += [
                TokenLogprob(*one) for one in log_probabilities(logits, path, following, num_top)
            ]
            sequence.commit(path)
    finally:
        sequence.truncate(0)
    return found
