"""Sampling controls that change a row of logits before a token is drawn from it.

They are functions of the row and of the text before it, and so is what a grammar allows: a
position's token is the same however the position was reached. The order is llama.cpp's: grammar,
bias, penalties, DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC and the temperature last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Logits
from edgespec.verification.constraint import Constraint
from edgespec.verification.match import Verdict, Verifier
from edgespec.verification.noise import gumbel_noise
from edgespec.verification.sampling import SamplingParams
from edgespec.verification.shaping import Shaping
from edgespec.verification.top import top_tokens

MAX_DRY_MATCH = 50
"""Longer repetitions count as this long."""
DRY_BREAKERS = ("\n", ":", '"', "*")
_OUT = np.float32(-np.inf)
MOST_REFUSED = 4
"""Draws that a constraint may refuse before what it allows is worth finding out."""
_NO_TOKEN = 2**31
"""No vocabulary has it: its noise at a position is independent of every token's."""


class ShapedVerifier(Verifier):
    """Compares drafts with tokens drawn from shaped logits, one visited row after the other."""

    def __init__(
        self,
        vocab_size: int,
        params: SamplingParams,
        max_nodes: int,
        shaping: Shaping,
        spelled: Callable[[int], bytes],
        constraint: Constraint | None = None,
    ) -> None:
        """`spelled` gives the bytes of a token; `constraint` says what may be written, and moves on
        with what is.
        """
        self.constraint = constraint
        self._asked, self._shaping = params, shaping
        self._breakers: dict[int, bool] = {}
        self._spelled = spelled
        self._bias_ids = np.array([token for token, _ in shaping.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in shaping.logit_bias], np.float32)
        drawn = replace(params, repetition_penalty=1.0)
        if shaping.cuts:  # then all cuts are made here, in their order
            drawn = replace(drawn, top_k=0, top_p=1.0, min_p=0.0)
        plain = shaping == Shaping() and params.repetition_penalty == 1.0
        whole = params.top_p == 1.0 and params.min_p == 0.0 and params.top_k == 0
        self._may_refuse = plain and (params.greedy or whole)
        """Whether draws that the constraint refuses can be left out one by one: no other token is
        drawn if they are."""
        super().__init__(vocab_size, drawn, max_nodes)

    @property
    def window(self) -> int:
        return 2**31 if self._shaping.dry_multiplier else self._asked.repetition_window

    def verify(
        self,
        logits: NDArray[np.float32],
        tokens: NDArray[np.int32],
        parents: NDArray[np.int16],
        recent: Sequence[int] | NDArray[np.int32],
        position: int,
        maxima: NDArray[np.float32] | None = None,
    ) -> Verdict:
        """As `Verifier.verify`, by shaped logits; the given ones stay as they are."""
        self._check(logits, maxima, len(tokens))
        drafts, above = tokens.tolist(), parents.tolist()
        text, path = list(recent), [0]
        bound = self.constraint
        while True:
            place = position + len(path) - 1
            if bound is not None and bound.forced:
                bonus = bound.forced[0]
            else:
                bonus = self._draw(logits, path[-1], text, place, maxima)
            if bound is not None:
                bound.take(bonus)
                if bound.is_over:
                    return Verdict(path, bonus)
            child = next(
                (
                    node
                    for node in range(path[-1] + 1, len(drafts))
                    if above[node] == path[-1] and drafts[node] == bonus
                ),
                None,
            )
            if child is None:
                return Verdict(path, bonus)
            path.append(child)
            text.append(bonus)

    def _draw(
        self, logits: Logits, node: int, text: Sequence[int], place: int, maxima: Logits | None
    ) -> int:
        """The token after a node.

        Where a constraint binds it, drawing without replacement until a token is allowed draws from
        the same distribution as a mask, and with the noise of a position the same token, for fewer
        looks at the grammar: the rejection of "Fast Controlled Generation from Language Models with
        Adaptive Weighted Rejection Sampling", section 3, for constraints that are known token by
        token.
        """
        row, bound = logits[node], self.constraint
        if bound is not None and self._may_refuse:
            token = self._drawn(row, place, None if maxima is None else maxima[node : node + 1])
            if bound.allows(token):
                return token
            left = np.array(row)
            for _ in range(MOST_REFUSED):
                left[token] = _OUT
                token = self._drawn(left, place)
                if bound.allows(token):
                    return token
        return self._drawn(self.shape(row, text, place), place)

    def _drawn(self, row: Logits, place: int, maxima: Logits | None = None) -> int:
        root, no_parent = np.zeros(1, np.int32), np.full(1, -1, np.int16)
        return super().verify(row[None], root, no_parent, (), place, maxima).bonus

    def shape(self, logits: Logits, text: Sequence[int], position: int) -> Logits:
        """A row of its own [vocab] f32 with everything done to it that comes before drawing."""
        shaping = self._shaping
        row = np.array(logits, np.float32)
        if np.isnan(row).any():
            return row  # drawing says so
        if self.constraint is not None:
            self.constraint.mask(row)
        if len(self._bias_ids):
            np.add.at(row, self._bias_ids, self._bias)
        window = self._asked.repetition_window
        self._penalise(row, text[-window:] if window else ())
        if shaping.dry_multiplier:
            self._penalise_repetition(row, text)
        if self.params.greedy:
            return row
        if shaping.top_n_sigma:
            known = row[np.isfinite(row)].astype(np.float64)
            row[row < known.max() - shaping.top_n_sigma * known.std()] = _OUT
        if shaping.cuts:
            kept = self._cut(row, position)
            cut = np.full_like(row, _OUT)
            cut[kept] = row[kept]
            return cut
        return row

    def _penalise(self, row: Logits, window: Sequence[int]) -> None:
        penalty = np.float32(self._asked.repetition_penalty)
        frequency, presence = self._shaping.frequency_penalty, self._shaping.presence_penalty
        if not len(window) or (penalty == 1.0 and not frequency and not presence):
            return
        seen, counts = np.unique(np.asarray(window, np.int64), return_counts=True)
        known = seen < len(row)
        seen, counts = seen[known], counts[known]
        if penalty != 1.0:
            row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
        row[seen] -= (counts * frequency + presence).astype(np.float32)

    def _penalise_repetition(self, row: Logits, text: Sequence[int]) -> None:
        """DRY: what came after the longest earlier copy of the text's end loses most."""
        if not text or self._breaks(text[-1]):
            return
        last, shaping = len(text) - 1, self._shaping
        ids = np.asarray(text[:-1], np.int64)
        longest: dict[int, int] = {}
        for place in np.flatnonzero(ids == text[-1]).tolist():
            after = text[place + 1]
            if self._breaks(after):
                continue
            length = 1
            while (
                length < min(MAX_DRY_MATCH, place + 1)
                and text[place - length] == text[last - length]
                and not self._breaks(text[last - length])
            ):
                length += 1
            longest[after] = max(longest.get(after, 0), length)
        for token, length in longest.items():
            beyond = length - shaping.dry_allowed_length
            if beyond >= 0 and token < len(row):
                row[token] -= np.float32(shaping.dry_multiplier * shaping.dry_base**beyond)

    def _breaks(self, token: int) -> bool:
        """Whether repetitions end at a token: it has one of the characters that lists repeat."""
        if token not in self._breakers:
            text = self._spelled(token).decode("utf-8", "replace")
            self._breakers[token] = any(breaker in text for breaker in DRY_BREAKERS)
        return self._breakers[token]

    def _cut(self, row: Logits, position: int) -> NDArray[np.int64]:
        """The ids that top-k, typical-p, top-p, min-p and XTC leave of a row, by softmax of the
        logits as they are.
        """
        asked, shaping = self._asked, self._shaping
        limit = min(asked.top_k or len(row), len(row))
        ids, logits = (found[0] for found in top_tokens(row[None], limit))
        exact = logits.astype(np.float64)
        share = np.exp(exact - exact[0])
        if shaping.typical_p < 1.0:
            share = share / share.sum()
            surprise = -np.log(np.maximum(share, 1e-300))
            entropy = float((share * surprise).sum())
            order = np.argsort(np.abs(surprise - entropy), kind="stable")
            num = int(np.searchsorted(np.cumsum(share[order]), shaping.typical_p)) + 1
            kept = np.sort(order[:num])
            ids, share = ids[kept], share[kept]
        if asked.top_p < 1.0:
            mass = np.cumsum(share)
            num = int(np.searchsorted(mass, asked.top_p * mass[-1])) + 1
            ids, share = ids[:num], share[:num]
        if asked.min_p > 0.0:
            kept = np.flatnonzero(share >= asked.min_p * share[0])
            ids, share = ids[kept], share[kept]
        noise = float(gumbel_noise(asked.seed, position + 1, [_NO_TOKEN])[0])
        if shaping.xtc_probability > math.exp(-math.exp(-noise)):
            num_likely = int((share >= shaping.xtc_threshold * share.sum()).sum())
            ids = ids[max(num_likely - 1, 0) :]
        kept_ids: NDArray[np.int64] = ids.astype(np.int64)
        return kept_ids
