"""A tree of drafts while it grows: nodes taken, nodes waiting, likeliest path first.

The best-first rule is DySpec's ("DySpec: Faster Speculative Decoding with Dynamic Token Tree
Structure"), with a drafter's own estimates in place of a draft model's.

places int32 [most nodes + most waiting + 1, 5]: token, parent, kind, state, match; scores float64
[the same, 3]: probability of the path, of the node given its parent, share. Rows below WAITING are
the tree, root first; the others wait, and the last row counts. What `state` and `match` mean is the
drafter's business. Every drafter's tree grows by the one loop of `grown.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.rates import learn
from edgespec.drafting.tree import DraftTree
from edgespec.system.addresses import AddressTable
from edgespec.system.jit import inner_kernel

TOKEN, PARENT, KIND, STATE, MATCH = 0, 1, 2, 3, 4
PATH, GIVEN, SHARE = 0, 1, 2
MOST_NODES = 255
"""Most nodes of one proposal besides the root."""
WAITING = MOST_NODES + 1
_MOST_WAITING = 256
COUNTS = WAITING + _MOST_WAITING
NODES, QUEUED, MOST = 0, 1, 2
"""Of the last row: nodes of the tree, those waiting, and the most nodes asked for."""
PATH_FLOOR = 0.01
"""Paths less likely than this never pay."""
EXPAND, FEED, LEARN, KEPT, NOW, PROMPT, PATH_AT, PATH_LENGTH = range(8)
"""Words of a drafter's table: the addresses of its three kernels (the last two may be 0); nodes of
the last proposal until its outcome is known; what the text's latest rows are stamped with; whether
what is fed is a prompt; where the tokens after the text are that a tree is to follow.
"""
PLACES, SCORES, TOKENS, PARENTS, CHANCES, RATES, OWN = range(8, 29, 3)
"""Arrays of a drafter's table; from the last word on, the drafter's own."""
OUTCOME = 48
NUM_WORDS = OUTCOME + 6
"""After them: what `grown.py` says of an outcome, for a drafter that is told alone."""


@inner_kernel
def plant(
    places: NDArray[np.int32], scores: NDArray[np.float64], token: int, max_nodes: int
) -> int:
    """Make `token` the root of a tree of at most `max_nodes` more; return it, -1 for none more."""
    for column in range(5):
        places[0, column] = 0
    places[0, TOKEN] = token
    places[0, PARENT] = -1
    for column in range(3):
        scores[0, column] = 1.0
    places[COUNTS, NODES] = 1
    places[COUNTS, QUEUED] = 0
    places[COUNTS, MOST] = max_nodes + 1
    return 0 if max_nodes > 0 else -1


@inner_kernel
def push(
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    token: int,
    parent: int,
    kind: int,
    state: int,
    match: int,
    p_accept: float,
    share: float,
) -> None:
    """Let a child of node `parent` wait if its path can pay."""
    path = scores[parent, PATH] * p_accept
    waiting = places[COUNTS, QUEUED]
    if path < PATH_FLOOR or waiting == _MOST_WAITING:
        return
    row = WAITING + waiting
    places[row, TOKEN] = token
    places[row, PARENT] = parent
    places[row, KIND] = kind
    places[row, STATE] = state
    places[row, MATCH] = match
    scores[row, PATH] = path
    scores[row, GIVEN] = p_accept
    scores[row, SHARE] = share
    places[COUNTS, QUEUED] = waiting + 1


@inner_kernel
def take_best(places: NDArray[np.int32], scores: NDArray[np.float64]) -> int:
    """Make the likeliest of those waiting the tree's next node and return it; -1 when nobody waits
    or the tree is as large as was asked for, and nothing is to follow.
    """
    new = places[COUNTS, NODES]
    last = WAITING + places[COUNTS, QUEUED] - 1
    if last < WAITING or new >= places[COUNTS, MOST]:
        return -1
    best = WAITING
    for row in range(WAITING + 1, last + 1):
        if scores[row, PATH] > scores[best, PATH]:
            best = row
    for column in range(5):
        places[new, column] = places[best, column]
        places[best, column] = places[last, column]
    for column in range(3):
        scores[new, column] = scores[best, column]
        scores[best, column] = scores[last, column]
    places[COUNTS, NODES] = new + 1
    places[COUNTS, QUEUED] -= 1
    return int(new) if new + 1 < places[COUNTS, MOST] else -1


@inner_kernel
def is_waiting(places: NDArray[np.int32], first: int, end: int, token: int) -> bool:
    """Whether one of those waiting, from the `first` up to `end`, holds this token."""
    row = WAITING + first
    while row < WAITING + end and places[row, TOKEN] != token:
        row += 1
    return row < WAITING + end


@inner_kernel
def num_waiting(places: NDArray[np.int32]) -> int:
    """How many wait."""
    return int(places[COUNTS, QUEUED])


@inner_kernel
def num_nodes(places: NDArray[np.int32]) -> int:
    """Nodes of the tree, the root included."""
    return int(places[COUNTS, NODES])


@inner_kernel
def learn_from(
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    num_nodes: int,
    new_tokens: NDArray[np.int32],
    rates: NDArray[np.float64],
) -> None:
    """Compare a proposal with the tokens that came and update the rates of its kinds."""
    node = 0
    for position in range(len(new_tokens)):
        follower = -1
        for child in range(node + 1, num_nodes):
            if places[child, PARENT] == node:
                hit = places[child, TOKEN] == new_tokens[position]
                learn(rates, places[child, KIND], scores[child, SHARE], hit)
                if hit:
                    follower = child
        if follower < 0:
            break
        node = follower


@inner_kernel
def read_out(
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    num_nodes: int,
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    p_accept: NDArray[np.float32],
) -> None:
    """Copy the tree's columns into arrays of their own."""
    for node in range(num_nodes):
        tokens[node] = places[node, TOKEN]
        parents[node] = places[node, PARENT]
        p_accept[node] = scores[node, GIVEN]


class Proposal:
    """The buffers of one drafter's proposals."""

    def __init__(self, source: int) -> None:
        self.places = np.zeros((COUNTS + 1, 5), np.int32)
        self.scores = np.zeros((COUNTS + 1, 3), np.float64)
        self._tokens = np.zeros(WAITING, np.int32)
        self._parents = np.zeros(WAITING, np.int16)
        self._p_accept = np.zeros(WAITING, np.float32)
        self._sources = np.full(WAITING, source, np.uint8)
        self._sources[0] = 0
        self._sources.setflags(write=False)

    def bind_to(self, table: AddressTable) -> None:
        """Let a drafter's kernels grow their trees here."""
        table.bind(PLACES, self.places)
        table.bind(SCORES, self.scores)
        table.bind(TOKENS, self._tokens)
        table.bind(PARENTS, self._parents)
        table.bind(CHANCES, self._p_accept)

    def tree(self, num_nodes: int) -> DraftTree:
        """The first `num_nodes` nodes, good until the next proposal."""
        return DraftTree(
            self._tokens[:num_nodes],
            self._parents[:num_nodes],
            self._p_accept[:num_nodes],
            self._sources[:num_nodes],
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the buffers."""
        tree = (self._tokens, self._parents, self._p_accept, self._sources)
        return self.places.nbytes + self.scores.nbytes + sum(array.nbytes for array in tree)
