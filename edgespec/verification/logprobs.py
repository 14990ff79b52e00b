"""Log-probabilities of the tokens of a step, from the logits that they were drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgespec.backends.passes import Logits
from edgespec.verification.top import top_tokens


def log_probabilities(
    logits: Logits, path: Sequence[int], tokens: Sequence[int], num_top: int
) -> Iterator[tuple[int, float, list[tuple[int, float]]]]:
    """(token, log-probability, the likeliest tokens with theirs) of each token after a node of an
    accepted path; logits [n, vocab] f32.

    A row at a time in float64, so a token's numbers do not depend on what else the pass verified.
    """
    for node, token in zip(path, tokens, strict=False):
        row = logits[node]
        exact = row.astype(np.float64)
        largest = float(exact.max())
        total = largest + float(np.log(np.exp(exact - largest).sum()))
        top: list[tuple[int, float]] = []
        if num_top:
            ids, values = top_tokens(np.ascontiguousarray(row)[None], num_top)
            top = [
                (one, float(np.float64(value)) - total)
                for one, value in zip(ids[0].tolist(), values[0], strict=True)
            ]
        yield token, float(exact[token]) - total, top
