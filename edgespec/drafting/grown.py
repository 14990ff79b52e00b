"""Drafters whose trees grow in compiled code: one loop, and each drafter's own three kernels.

A drafter is a table of addresses (the words are in `proposal.py`) with three kernels of one
signature, each of which takes the table and two numbers:

    expand(table, node, _)       let the continuations of a node that may pay wait
    feed(table, tokens, count)   the text grew by so many int32 at this address
    learn(table, outcome, _)     a tree was verified: see OUTCOME below; the text still ends with
                                 its root

They allocate nothing and raise nothing, so the market calls those of several drafters from one
kernel of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter
from edgespec.drafting.proposal import (
    CHANCES,
    EXPAND,
    FEED,
    KEPT,
    LEARN,
    MOST_NODES,
    NUM_WORDS,
    OUTCOME,
    PARENTS,
    PATH_AT,
    PATH_LENGTH,
    PLACES,
    RATES,
    SCORES,
    TOKENS,
    Proposal,
    learn_from,
    num_nodes,
    plant,
    read_out,
    take_best,
)
from edgespec.drafting.rates import new_rates
from edgespec.drafting.tree import DraftTree, Path, StepOutcome
from edgespec.errors import OptionError
from edgespec.system.addresses import (
    WORD_BYTES,
    AddressTable,
    Entry,
    address_of,
    call,
    float32_line,
    float64_rows,
    int16_line,
    int32_line,
    int32_rows,
    set_word,
    word,
)
from edgespec.system.jit import inner_kernel, kernel

OUTCOME_TOKENS, OUTCOME_PARENTS, OUTCOME_NEW, NUM_OUTCOME_WORDS = 0, 2, 4, 6
"""Words of an outcome's table: the verified tree's tokens and parents, and the tokens that came."""


@inner_kernel
def grow(table: int, root: int, max_nodes: int) -> int:
    """Fill a drafter's tree, best path first; return its number of nodes with the root."""
    places, scores = int32_rows(table, PLACES), float64_rows(table, SCORES)
    expand = word(table, EXPAND)
    node = plant(places, scores, root, min(max_nodes, MOST_NODES))
    while node >= 0:
        call(expand, table, node, 0)
        node = take_best(places, scores)
    size = num_nodes(places)
    read_out(
        places,
        scores,
        size,
        int32_line(table, TOKENS),
        int16_line(table, PARENTS),
        float32_line(table, CHANCES),
    )
    set_word(table, KEPT, size)
    return size


@inner_kernel
def settle(table: int, outcome: int, new_tokens: NDArray[np.int32]) -> None:
    """Let a drafter learn how often each kind of node was right, and what the tree teaches."""
    if word(table, KEPT) > 1:
        learn_from(
            int32_rows(table, PLACES),
            float64_rows(table, SCORES),
            word(table, KEPT),
            new_tokens,
            float64_rows(table, RATES),
        )
    set_word(table, KEPT, 0)
    if word(table, LEARN) != 0:
        call(word(table, LEARN), table, outcome, 0)


@kernel("int64", "int64", "int64", result="int64")
def grow_one(table: int, root: int, max_nodes: int) -> int:
    """`grow`, for a drafter that is asked alone."""
    return grow(table, root, max_nodes)


@inner_kernel
def describe_outcome(outcome: int, tokens: NDArray[np.int32], parents: NDArray[np.int16]) -> None:
    """Write where a verified tree is."""
    set_word(outcome, OUTCOME_TOKENS, tokens.ctypes.data)
    set_word(outcome, OUTCOME_TOKENS + 1, len(tokens))
    set_word(outcome, OUTCOME_PARENTS, parents.ctypes.data)
    set_word(outcome, OUTCOME_PARENTS + 1, len(tokens))


@kernel("int64", "int32[:]", "int16[:]", "int32[:]")
def settle_one(
    table: int,
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    new_tokens: NDArray[np.int32],
) -> None:
    """`settle`, for a drafter that is told alone."""
    outcome = table + WORD_BYTES * OUTCOME
    describe_outcome(outcome, tokens, parents)
    set_word(outcome, OUTCOME_NEW, new_tokens.ctypes.data)
    set_word(outcome, OUTCOME_NEW + 1, len(new_tokens))
    settle(table, outcome, new_tokens)


@kernel("int64", "int32[:]")
def feed_one(table: int, tokens: NDArray[np.int32]) -> None:
    """The text grew by these tokens, for which there is room."""
    call(word(table, FEED), table, tokens.ctypes.data, len(tokens))


class Kernels(NamedTuple):
    """What a drafter does when it is asked, fed and told; see above."""

    expand: Entry
    feed: Entry
    learn: Entry | None = None


class GrownDrafter(Drafter):
    """A drafter that is a table of addresses, for kernels that call it; see above.

    Raises OptionError when `max_bytes` is too small to be of use.
    """

    least_bytes = 64 * 1024
    priors: Sequence[float]
    """For each kind of node, how often it is right until more is known."""
    kernels: Kernels
    callable_from_kernels = False
    """Whether asking, feeding and telling it is calling its kernels and nothing else."""

    def __init__(self, max_bytes: int, *, source: int = 1) -> None:
        if max_bytes < self.least_bytes:
            raise OptionError(
                f"the drafter {self.name} cannot work in {max_bytes} bytes; give it "
                f"{self.least_bytes} or more"
            )
        self.max_bytes = max_bytes
        self.source = source
        self.table = AddressTable(NUM_WORDS)
        self._words = self.table.words.data
        for place, entry in zip((EXPAND, FEED, LEARN), self.kernels, strict=True):
            self._words[place] = address_of(entry) if entry else 0
        self._rates = new_rates(self.priors)
        self.table.bind(RATES, self._rates)
        self._proposal = Proposal(source)
        self._proposal.bind_to(self.table)

    @property
    def _fixed_bytes(self) -> int:
        return self._proposal.size_bytes + self._rates.nbytes + self.table.words.nbytes

    @property
    @abstractmethod
    def last_token(self) -> int:
        """The text's; less than 0 while there is none."""

    @property
    def room(self) -> int:
        """Tokens that may be fed before `extend` has to make room for more."""
        return 2**30

    def _forget_proposal(self) -> None:
        """Nothing is to be learnt from the last proposal any more."""
        self._words[KEPT] = 0

    def propose(self, max_nodes: int) -> DraftTree:
        """The likeliest continuations, at most `max_nodes` besides the root, best path first."""
        if self.last_token < 0:
            raise OptionError(
                "a drafter has no text to continue; call reset() with the prompt first"
            )
        return self._proposal.tree(grow_one(self.table.address, self.last_token, max_nodes))

    def propose_after(self, path: Path, max_nodes: int, scratch: Proposal) -> DraftTree:
        """What the stores know to follow, as if the text had grown by the path."""
        tokens, kept = np.array(path.tokens, np.int32), self._words[KEPT]
        try:
            scratch.bind_to(self.table)
            self._words[PATH_AT], self._words[PATH_LENGTH] = tokens.ctypes.data, len(tokens)
            return scratch.tree(grow_one(self.table.address, path.tokens[-1], max_nodes))
        finally:
            self._words[KEPT], self._words[PATH_LENGTH] = kept, 0
            self._proposal.bind_to(self.table)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn how often each kind of node was right, and what the verified tree teaches.

        The last proposal is compared with the tokens that came, whether or not its nodes were
        verified.
        """
        new_tokens = np.asarray(outcome.new_tokens, dtype=np.int32)
        tree = outcome.tree
        settle_one(self.table.address, tree.tokens, tree.parents, new_tokens)
