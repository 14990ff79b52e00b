"""Drafts from stores in order of locality: this reply, this conversation, this user, a corpus.

"Lossless Acceleration of Large Language Models with Hierarchical Drafting based on Temporal
Locality in Speculative Decoding" (Hierarchy Drafting); the corpus as in "RASD: Retrieval-Augmented
Speculative Decoding" and CodeSwift. The longest context that any store knows speaks first; of
stores that know it, the most local one; what it leaves over goes on down. How far each is to be
trusted is learnt.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import Kernels
from edgespec.drafting.proposal import (
    NOW,
    PARENT,
    PATH,
    PATH_FLOOR,
    PLACES,
    PROMPT,
    RATES,
    SCORES,
    TOKEN,
    num_waiting,
)
from edgespec.drafting.tables.counted import priors_by_order, push_counted
from edgespec.drafting.tables.followers import SET_ROWS, count_text, find, keys_at_node
from edgespec.drafting.tables.table_drafter import TableDrafter, new_rows
from edgespec.drafting.text.history import History
from edgespec.drafting.text.store import COLUMNS, ORDERS, WAYS, Store
from edgespec.drafting.text_drafter import KEYS, ROWS, WINDOW, move_up, write_behind
from edgespec.drafting.tree import DraftTree
from edgespec.system.addresses import (
    float64_rows,
    int32_line,
    int32_rows,
    int64_rows,
    set_word,
    word,
)
from edgespec.system.jit import entry

_TRUST = (1.0, 0.95, 0.8, 0.6)
"""What followers in each store are worth at first, most local first."""
_PRIORS = tuple(trust * prior for trust in _TRUST for prior in priors_by_order(ORDERS))
_LEAST_FOR_HISTORY = 2 * History.size_bytes
CONVERSATION, HISTORY, CORPUS, NUM_PAST = ROWS + 3, ROWS + 6, ROWS + 9, ROWS + 12
"""Words: the stores after the reply's own, in order; tokens of the history, -1 where none is kept.
"""


@entry
def expand_stores(table: int, node: int, _: int) -> int:
    """Let what followed the contexts that end with a node wait, the longest context's first, of
    each the most local store's.
    """
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    rates, keys = float64_rows(table, RATES), int64_rows(table, KEYS)
    tail = int32_line(table, WINDOW)[: len(keys)]
    tokens, parents = places[:, TOKEN], places[:, PARENT]
    left = 1.0
    first = num_waiting(places)
    for order in range(keys_at_node(tokens, parents, node, tail, keys) - 1, -1, -1):
        for level in range(len(_TRUST)):
            if left * scores[node, PATH] < PATH_FLOOR:
                break
            rows = int32_rows(table, ROWS + 3 * level)
            row = find(rows, keys[order, 0], keys[order, 1])
            if row >= 0:
                left = push_counted(
                    rows, row, level * ORDERS + order, rates, places, scores,
                    first, node, left, False,
                )  # fmt: skip
    return 0


@entry
def feed_stores(table: int, tokens: int, count: int) -> int:
    """Count a prompt in the conversation, and what is written in the reply and the history."""
    begin = write_behind(table, tokens, count)
    text, keys = int32_line(table, WINDOW)[: begin + count], int64_rows(table, KEYS)
    if word(table, PROMPT) != 0:
        count_text(int32_rows(table, CONVERSATION), keys, text, begin, word(table, NOW))
    else:
        count_text(int32_rows(table, ROWS), keys, text, begin, word(table, NOW))
        if word(table, NUM_PAST) >= 0:
            count_text(int32_rows(table, HISTORY), keys, text, begin, word(table, NUM_PAST))
            set_word(table, NUM_PAST, (word(table, NUM_PAST) + count) % 2**30)
    return move_up(table, count)


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
    kernels = Kernels(expand_stores, feed_stores)

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
        past = self._nothing if self._history is None else self._history.rows
        self.table.bind(CONVERSATION, self._conversation)
        self.table.bind(HISTORY, past)
        self.table.bind(CORPUS, self._nothing if corpus is None else corpus.rows)

    def _forget(self) -> None:
        super()._forget()
        self._conversation.fill(0)

    def _feed(self, tokens: NDArray[np.int32]) -> None:
        past = self._history  # others may have written it since
        self._words[NUM_PAST] = -1 if past is None else past.num_tokens
        super()._feed(tokens)
        if past is not None:
            past.num_tokens = self._words[NUM_PAST]

    def propose(self, max_nodes: int) -> DraftTree:
        """The likeliest continuations, at most `max_nodes` besides the root, best path first."""
        if self._corpus is not None:
            self._corpus.keep_small()
        return super().propose(max_nodes)

    def close(self) -> None:
        """Keep the history for the next run."""
        if self._history is not None:
            self._history.save()

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays, the corpus' left out: exact, at most `max_bytes`."""
        own = self._conversation.nbytes + self._nothing.nbytes
        return super().size_bytes + own + (History.size_bytes if self._history is not None else 0)
