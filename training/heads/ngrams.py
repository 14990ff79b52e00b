"""What n-grams would have drafted at the same places: the package's default drafters of text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.drafting.market.market import Market
from edgespec.drafting.tree import StepOutcome
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS
from edgespec.tools.replay.lanes import make_market
from edgespec.tools.replay.steps import right_path
from edgespec.verification.sampling import SamplingParams
from training.heads.acceptance import DEPTHS, Kept, batches


def right_drafts(market: Market, ids: NDArray[np.int32], first: int, last: int) -> Tensor:
    """Return which drafts are right, bool [`DEPTHS`, tokens]; that at t is of token t.

    The market's surest chain is drafted before every token from `first` to `last`. Where it is
    shorter, what is missing is wrong.
    """
    right = torch.zeros(DEPTHS, len(ids), dtype=torch.bool)
    market.begin(SamplingParams())
    market.reset(ids[:first])
    for at in range(first, min(last + 1, len(ids) - DEPTHS)):
        coming = ids[at : at + DEPTHS].tolist()
        tree = market.propose(DEPTHS)
        for depth, token in enumerate(tree.surest().tokens[:DEPTHS]):
            right[depth, at + depth] = token == coming[depth]
        path = right_path(tree, coming[:-1])
        new = coming[: len(path)]
        market.observe(StepOutcome(tree, path, new[-1], new, None))
        market.extend(coming[:1])
        market.take_seconds()
    return right


def accepted(tokens: Path, name: str, most: int) -> Kept:
    """Return what is kept of the chains drafted everywhere in the stream's written tokens.

    One market reads all texts, the short ones first, up to their first `most` tokens, and learns as
    that of an engine does.
    """
    total, market = Kept(), make_market(BUILT_IN_DRAFTERS)
    for texts, marks in batches(tokens, name, most):
        for ids, asked in zip(texts.cpu(), marks.cpu(), strict=True):
            written = 2 + asked[2:].nonzero()[:, 0]
            if len(written):
                first, last = int(written[0]), int(written[-1])
                right = right_drafts(market, ids.numpy().astype(np.int32), first, last)
                # A chain is counted by the place two before its first token.
                total.add(list(right[:, None, 2:]), asked[None])
    return total
