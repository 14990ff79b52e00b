"""Drafts from stores in order of locality: this reply, this conversation, this user, a corpus.

"Lossless Acceleration of Large Language Models with Hierarchical Drafting based on Temporal
Locality in Speculative Decoding" (Hierarchy Drafting); the corpus as in "RASD: Retrieval-Augmented
Speculative Decoding" and CodeSwift. The longest context that any store knows speaks first; of
stores that know it, the most local one; what it leaves over goes on down. How far each is to be
trusted is learnt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.proposal import (
    PARENT,
    PATH,
    PATH_FLOOR,
    TOKEN,
    num_nodes,
    num_waiting,
    plant,
    take_best,
)
from edgespec.drafting.tables.counted import priors_by_order, push_counted
from edgespec.drafting.tables.followers import SET_ROWS, count_text, find, keys_at_node
from edgespec.drafting.tables.table_drafter import TableDrafter, new_rows
from edgespec.drafting.text.history import History
from edgespec.drafting.text.store import COLUMNS, ORDERS, WAYS, Store
from edgespec.drafting.tree import DraftTree
from edgespec.system.jit import kernel

_TRUST = (1.0, 0.95, 0.8, 0.6)
"""What followers in each store are worth at first, most local first."""
_PRIORS = tuple(trust * prior for trust in _TRUST for prior in priors_by_order(ORDERS))
_LEAST_FOR_HISTORY = 2 * History.size_bytes


@kernel
def grow_from_stores(
    reply: NDArray[np.int32],
    conversation: NDArray[np.int32],
    history: NDArray[np.int32],
    corpus: NDArray[np.int32],
    rates: NDArray[np.float64],
    keys: NDArray[np.int64],
    tail: NDArray[np.int32],
    max_nodes: int,
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> int:
    """Fill the tree, best path first; return its number of nodes with the root."""
    stores = (reply, conversation, history, corpus)
    node = plant(places, scores, tail[-1], max_nodes)
    tokens, parents = places[:, TOKEN], places[:, PARENT]
    while node >= 0:
        left = 1.0
        first = num_waiting(places)
        for order in range(keys_at_node(tokens, parents, node, tail, keys) - 1, -1, -1):
            for level in range(len(stores)):
                if left * scores[node, PATH] < PATH_FLOOR:
                    break
                rows = stores[level]
                row = find(rows, keys[order, 0], keys[order, 1])
                if row >= 0:
                    left = push_counted(
                        rows, row, level * ORDERS + order, rates, places, scores,
                        first, node, left, False,
                    )  # fmt: skip
        node = take_best(places, scores)
    return num_nodes(places)


class HierarchyDrafter(TableDrafter):
    """Proposes what followed the text's last tokens here, or else where the user was before.

    The history, when there is one, and a corpus' datastore belong to a vocabulary. The corpus is
    mapped and not counted in `size_bytes`: the plan has an item for its pages, which are given back
    before they are more.
    """

    name = "hierarchy"
    follows = True
    orders = ORDERS
    ways = WAYS
    part = 0.25
    priors = _PRIORS

    def __init__(
        self,
        max_bytes: int = TableDrafter.default_bytes,
        *,
        source: int = 1,
        history: History | None = None,
        corpus: Store | None = None,
    ) -> None:
        super().__init__(max_bytes, source=source)
        self._nothing = np.zeros((SET_ROWS, COLUMNS), np.int32)
        self._history = history if max_bytes >= _LEAST_FOR_HISTORY else None
        self._corpus = corpus
        self._conversation = self._nothing  # small, while the rest is counted
        self._conversation = new_rows(max_bytes - self.size_bytes, WAYS)
        self._is_prompt = False

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Start over: these tokens are the conversation, and what is extended is the reply."""
        self._is_prompt = True
        super().reset(tokens)
        self._is_prompt = False

    def _forget(self) -> None:
        super()._forget()
        self._conversation.fill(0)

    def _learn_text(self, text: NDArray[np.int32], begin: int) -> None:
        if self._is_prompt:
            count_text(self._conversation, self._keys, text, begin, self._now)
            return
        count_text(self._rows, self._keys, text, begin, self._now)
        if self._history is not None:
            past = self._history
            count_text(past.rows, self._keys, text, begin, past.num_tokens)
            past.num_tokens = (past.num_tokens + len(text) - begin) % 2**30

    def propose(self, max_nodes: int) -> DraftTree:
        """The likeliest continuations, at most `max_nodes` besides the root, best path first."""
        if self._corpus is not None:
            self._corpus.keep_small()
        return super().propose(max_nodes)

    def _grow(self, max_nodes: int) -> int:
        return grow_from_stores(
            self._rows,
            self._conversation,
            self._nothing if self._history is None else self._history.rows,
            self._nothing if self._corpus is None else self._corpus.rows,
            self._rates,
            self._keys,
            self._tail,
            max_nodes,
            self._proposal.places,
            self._proposal.scores,
        )

    def close(self) -> None:
        """Keep the history for the next run."""
        if self._history is not None:
            self._history.save()

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays, the corpus' left out: exact, at most `max_bytes`."""
        own = self._conversation.nbytes + self._nothing.nbytes
        return super().size_bytes + own + (History.size_bytes if self._history is not None else 0)
