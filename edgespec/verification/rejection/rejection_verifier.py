"""Verification of drafts that were drawn from the drafter's own probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import BackendError, OptionError
from edgespec.verification.match import Verdict
from edgespec.verification.noise import wrapping
from edgespec.verification.rejection.distribution import target_distribution
from edgespec.verification.rejection.k_seq import accept_k_seq
from edgespec.verification.rejection.one_draft import acceptance_key, draw
from edgespec.verification.rejection.recursive import accept_recursive
from edgespec.verification.sampling import SamplingParams

_MAX_ERROR = 0.01
"""How far from 1 a drafter's probabilities may sum: half precision's rounding, not a mistake."""


def _places(ids: NDArray[np.integer], wanted: NDArray[np.integer]) -> NDArray[np.int64]:
    """Where each wanted id is among `ids`; -1 where it is not."""
    order = np.argsort(ids)
    places = order[np.searchsorted(ids, wanted, sorter=order).clip(max=len(ids) - 1)]
    return np.where(ids[places] == wanted, places, -1)


class RejectionVerifier:
    """Accepts or rejects sampled drafts so that the text has the target's distribution.

    Unlike `Verifier` it does not emit the same text with and without drafts, only text of the same
    distribution; the same drafts and seed give the same text. Siblings must stand in the order in
    which they were drawn, and whether one is left out may depend on its ancestors, never on itself.
    Without replacement they are verified by recursive rejection sampling, with replacement (a token
    drawn twice is two nodes) by k-SEQ; chains are the same in both.
    """

    def __init__(
        self, vocab_size: int, params: SamplingParams, *, with_replacement: bool = False
    ) -> None:
        self.params = params
        self.vocab_size = vocab_size
        self.with_replacement = with_replacement

    def verify(
        self,
        logits: NDArray[np.float32],
        tokens: NDArray[np.int32],
        parents: NDArray[np.int16],
        draft_probs: NDArray[np.floating],
        recent: Sequence[int] | NDArray[np.int32],
        position: int,
        draft_ids: NDArray[np.integer] | None = None,
    ) -> Verdict:
        """The accepted path of a tree and the token after it; arguments as in `Verifier.verify`.

        draft_probs [n, vocab] float, row i the probabilities that the children of node i were drawn
        with; or [n, m], those of the tokens draft_ids [n, m], the others' being 0 (-1 pads). Rows
        of nodes without children are not looked at; a child of probability 0 is never accepted.
        Raises BackendError for logits that are damaged or do not fit, OptionError for probabilities
        that are none and for a token drawn twice without replacement.
        """
        self._check(logits, len(tokens), draft_probs, draft_ids)
        text = list(recent)
        path = [0]
        while True:
            node, depth = path[-1], len(path)
            where = position + depth
            ids, target = target_distribution(logits[node], text, self.params, where - 1)
            with wrapping():
                key = np.uint64(acceptance_key(np.uint64(self.params.seed), where))
                children = np.flatnonzero(parents == node)
                accepted = -1
                if len(children):
                    row_ids = None if draft_ids is None else draft_ids[node]
                    accepted = self._accept(
                        ids, target, tokens[children], draft_probs[node], row_ids, key
                    )
                if accepted < 0:
                    return Verdict(path, int(ids[draw(target, key)]))
            path.append(int(children[accepted]))
            text.append(int(tokens[path[-1]]))

    def _accept(
        self,
        ids: NDArray[np.int64],
        target: NDArray[np.float64],
        siblings: NDArray[np.int32],
        probs: NDArray[np.floating],
        row_ids: NDArray[np.integer] | None,
        key: np.uint64,
    ) -> int:
        """The accepted sibling, or -1 and the residual in `target`."""
        if not self.with_replacement and len(np.unique(siblings)) < len(siblings):
            raise OptionError(
                f"siblings hold a token twice ({siblings.tolist()}), but are said to be drawn "
                "without replacement; give each token once or pass with_replacement=True"
            )
        total = float(probs.sum(dtype=np.float64))
        if not abs(total - 1.0) < _MAX_ERROR or not probs.min() >= 0.0:
            raise OptionError(
                f"a drafter's probabilities sum to {total:g} and the lowest is {probs.min():g}; "
                "give those that its drafts were drawn with, which are at least 0 and sum to 1"
            )
        if row_ids is None:
            draft, drawn = probs[ids], probs[siblings]
        else:
            padded = np.append(probs, 0.0)  # what is not listed is found last
            draft, drawn = padded[_places(row_ids, ids)], padded[_places(row_ids, siblings)]
        draft, drawn = draft.astype(np.float64) / total, drawn.astype(np.float64) / total
        rule = accept_k_seq if self.with_replacement else accept_recursive
        return rule(target, draft, _places(ids, siblings), drawn, key)

    def _check(
        self,
        logits: NDArray[np.float32],
        num_nodes: int,
        draft_probs: NDArray[np.floating],
        draft_ids: NDArray[np.integer] | None,
    ) -> None:
        if num_nodes > len(logits) or logits.shape[1] != self.vocab_size:
            raise BackendError(
                f"verification got {num_nodes} nodes and logits of shape {logits.shape}; it takes "
                f"one row of {self.vocab_size} logits for each"
            )
        columns = (self.vocab_size,) if draft_ids is None else draft_ids.shape[1:]
        if draft_probs.shape != (max(num_nodes, len(draft_probs)), *columns):
            raise OptionError(
                f"a drafter's probabilities have shape {draft_probs.shape}; give each of the "
                f"{num_nodes} nodes a row of {columns[0]}, one for each token or each draft id"
            )
