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
    MATCH,
    NOW,
    PARENT,
    PATH,
    PATH_FLOOR,
    PLACES,
    PROMPT,
    RATES,
    SCORES,
    STATE,
    TOKEN,
    Proposal,
    num_waiting,
)
from edgespec.drafting.tables.counted import EVIDENCE, priors_by_order, push_counted
from edgespec.drafting.tables.followers import SET_ROWS, count_text, find, keys_at_node
from edgespec.drafting.tables.table_drafter import TableDrafter, new_rows
from edgespec.drafting.text.history import COLUMNS, ORDERS, WAYS, History
from edgespec.drafting.text.match_rates import PRIORS as MATCH_PRIORS
from edgespec.drafting.text.store import Store
from edgespec.drafting.text.store_kernels import LONGEST, push_following, push_noted, search
from edgespec.drafting.text_drafter import KEYS, ROWS, WINDOW, move_up, write_behind
from edgespec.drafting.tree import DraftTree, Path
from edgespec.system.addresses import (
    float64_rows,
    int32_line,
    int32_rows,
    int64_rows,
    set_word,
    word,
)
from edgespec.system.jit import entry, inner_kernel

_TRUST, _TRUST_IN_CORPUS = (1.0, 0.95, 0.8), 0.6
"""What followers in each store are worth at first, most local first."""
CORPUS_KIND = len(_TRUST) * ORDERS * EVIDENCE
"""Kinds from here on are matches with the corpus, by length."""
_PRIORS = (
    *(trust * prior for trust in _TRUST for prior in priors_by_order(ORDERS)),
    *(_TRUST_IN_CORPUS * prior for prior in MATCH_PRIORS),
)
_LEAST_FOR_HISTORY = 2 * History.size_bytes
CONVERSATION, HISTORY, CORPUS, NUM_PAST = ROWS + 3, ROWS + 6, ROWS + 9, ROWS + 10
"""Words: the stores after the reply's own, in order, of the corpus the address of its table or 0;
tokens of the history, -1 where none is kept.
"""


@inner_kernel
def push_from_corpus(table: int, first: int, node: int, count: int, left: float) -> float:
    """Let what the corpus says after a node wait; return what is left for others."""
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    rates, corpus = float64_rows(table, RATES), word(table, CORPUS)
    if node == 0:
        return push_noted(corpus, count, CORPUS_KIND, rates, places, scores, left)
    return push_following(corpus, first, node, CORPUS_KIND, rates, places, scores, left)


@entry
def expand_stores(table: int, node: int, _: int) -> int:
    """Let what followed the contexts that end with a node wait, the longest context's first, of
    each the most local store's. Only before the root the corpus is searched; below, it goes on.
    """
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    rates, keys = float64_rows(table, RATES), int64_rows(table, KEYS)[:ORDERS]
    tail = int32_line(table, WINDOW)[: len(int64_rows(table, KEYS))]
    tokens, parents = places[:, TOKEN], places[:, PARENT]
    left, count, match = 1.0, 0, 0
    first = num_waiting(places)
    if word(table, CORPUS) != 0:
        if node == 0:
            count, match = search(word(table, CORPUS), tail)
            places[0, MATCH] = match
        elif places[node, STATE] > 0:
            match = places[node, MATCH]
    if match > ORDERS:
        left = push_from_corpus(table, first, node, count, left)
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
        if match == order + 1 and left * scores[node, PATH] >= PATH_FLOOR:
            left = push_from_corpus(table, first, node, count, left)
    return 0


@entry
def feed_stores(table: int, tokens: int, count: int) -> int:
    """Count a prompt in the conversation, and what is written in the reply and the history."""
    begin = write_behind(table, tokens, count)
    text = int32_line(table, WINDOW)[: begin + count]
    keys = int64_rows(table, KEYS)[:ORDERS]
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
    orders = LONGEST
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
        self._words[CORPUS] = 0 if corpus is None else corpus.table.address

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

    def propose_after(self, path: Path, max_nodes: int, scratch: Proposal) -> DraftTree:
        """What the stores know to follow, as if the text had grown by the path."""
        if self._corpus is not None:
            self._corpus.keep_small()
        return super().propose_after(path, max_nodes, scratch)

    def close(self) -> None:
        """Keep the history for the next run."""
        if self._history is not None:
            self._history.save()

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays, the corpus' left out: exact, at most `max_bytes`."""
        own = self._conversation.nbytes + self._nothing.nbytes
        return super().size_bytes + own + (History.size_bytes if self._history is not None else 0)
