"""Typical acceptance, the one lossy rule: a draft stays if the model finds it likely enough.

"Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", section 2.3.1
(typical acceptance): a token x is accepted when p(x) > min(epsilon, delta exp(-H(p))), with p the
model's distribution at the temperature and H its entropy. So unsure positions take many tokens,
sure ones only the likely. The text is not the one that the model alone would write, and its
distribution is another. At temperature 0 only the model's own token is left: use `Verifier`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Logits
from edgespec.verification.best_tokens import NOT_A_NUMBER
from edgespec.verification.match import Verdict, Verifier, bad_row

EPSILON = 0.09
"""Medusa's own setting, with delta its root."""
DELTA = math.sqrt(EPSILON)


class TypicalVerifier(Verifier):
    """Accepts the longest path of typical drafts; the token after it is drawn as ever.

    `SamplingParams` need a temperature above 0 and no penalty. What top-k, top-p and min-p leave
    out is not drawn, but it may be accepted.
    """

    def verify(
        self,
        logits: NDArray[np.float32],
        tokens: NDArray[np.int32],
        parents: NDArray[np.int16],
        recent: Sequence[int] | NDArray[np.int32],
        position: int,
        maxima: NDArray[np.float32] | None = None,
    ) -> Verdict:
        """As `Verifier.verify`, by the lossy rule."""
        self._check(logits, maxima, len(tokens))
        path = self._longest(logits, tokens.tolist(), parents.tolist(), position)
        last = slice(path[-1], path[-1] + 1)
        drawn = super().verify(
            logits[last],
            tokens[last],
            np.full(1, -1, np.int16),
            recent,
            position + len(path) - 1,
            None if maxima is None else maxima[last],
        )
        return Verdict(path, drawn.bonus)

    def _longest(
        self, logits: Logits, tokens: list[int], parents: list[int], position: int
    ) -> list[int]:
        """The nodes of the longest accepted path, the likeliest among equals."""
        paths = {0: (0.0, [0])}  # of accepted nodes: log-probability, nodes
        rows: dict[int, tuple[Logits, float]] = {}
        for node in range(1, len(tokens)):
            parent = parents[node]
            if parent not in paths:
                continue
            score, nodes = paths[parent]
            if parent not in rows:
                rows[parent] = self._judge(logits[parent], position + len(nodes) - 1)
            log_shares, bar = rows[parent]
            log_share = float(log_shares[tokens[node]])
            if log_share > bar:
                paths[node] = score + log_share, [*nodes, node]
        return max(paths.values(), key=lambda found: (len(found[1]), found[0]))[1]

    def _judge(self, row: Logits, position: int) -> tuple[Logits, float]:
        """Log-probabilities after a node, and the one that a child must exceed."""
        top = row.max()
        if not np.isfinite(top):
            raise bad_row(position, NOT_A_NUMBER)
        scaled = (row - top) / np.float32(self.params.temperature)
        shares = np.exp(scaled)
        total = float(shares.sum())
        finite = np.where(shares > 0, scaled, 0)  # 0 times minus infinity is no number
        entropy = math.log(total) - float(shares @ finite) / total
        return scaled - math.log(total), min(math.log(EPSILON), math.log(DELTA) - entropy)
