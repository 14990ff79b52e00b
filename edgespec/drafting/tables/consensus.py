"""Drafts from the votes of several replies to the same prompt.

"Speculative Decoding for Multi-Sample Inference": samples of one prompt agree on much of their
text, so what one wrote is a draft for the others, and what several wrote is a better one. Votes are
counted by reply: a reply that repeats itself has one. The pool is shared by the drafters of
replies that are written side by side; replies written one after the other find it kept as long as
the prompt is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.grown import Kernels
from edgespec.drafting.proposal import PROMPT
from edgespec.drafting.tables.counted import expand_votes, num_votes, priors_by_order
from edgespec.drafting.tables.followers import FIRST, TOTAL, keys_in_text, row_for
from edgespec.drafting.tables.table_drafter import feed_nothing, new_rows
from edgespec.drafting.text_drafter import ROWS, TextDrafter
from edgespec.errors import OptionError
from edgespec.system.jit import inner_kernel, kernel

_ORDERS = 4
_WAYS = 4
_MOST_VOTERS = 31
"""Votes are bits of an int32; a later reply shares the bit of an earlier one."""


@inner_kernel
def vote(rows: NDArray[np.int32], row: int, token: int, bit: int) -> None:
    """One voter says that `token` follows: of equally many votes the latest is first, and a
    newcomer takes the place of the last.
    """
    num_ways = (rows.shape[1] - FIRST) // 2
    votes = FIRST + num_ways
    way = 0
    while way < num_ways - 1 and rows[row, FIRST + way] >= 0 and rows[row, FIRST + way] != token:
        way += 1
    if rows[row, FIRST + way] == token:
        bit |= rows[row, votes + way]
    while way > 0 and num_votes(rows[row, votes + way - 1]) <= num_votes(bit):
        rows[row, FIRST + way] = rows[row, FIRST + way - 1]
        rows[row, votes + way] = rows[row, votes + way - 1]
        way -= 1
    rows[row, FIRST + way] = token
    rows[row, votes + way] = bit
    rows[row, TOTAL] = 0
    for other in range(num_ways):
        rows[row, TOTAL] += num_votes(rows[row, votes + other])


@kernel("int32[:,:]", "int64[:,:]", "int32[:]", "int64", "int64", "int64")
def vote_text(
    rows: NDArray[np.int32],
    keys: NDArray[np.int64],
    text: NDArray[np.int32],
    begin: int,
    now: int,
    bit: int,
) -> None:
    """One voter says text[begin:], each token after the contexts before it."""
    for end in range(begin, len(text)):
        for order in range(keys_in_text(text, end, keys)):
            row = row_for(rows, keys[order, 0], keys[order, 1], now + end - begin)
            vote(rows, row, text[end], bit)


class ConsensusPool:
    """What the replies to one prompt said; not for use by several threads at once."""

    def __init__(self, max_bytes: int = TextDrafter.default_bytes) -> None:
        """A table of at most `max_bytes`; raises OptionError when that is too small."""
        self.rows = new_rows(max_bytes, _WAYS)
        if not len(self.rows):
            raise OptionError(
                f"a pool of {max_bytes} bytes holds nothing; give it "
                f"{TextDrafter.least_bytes} or more"
            )
        self._keys = np.zeros((_ORDERS, 2), np.int64)
        self.prompt = b""
        self.num_users = 0
        self._num_voters = 0
        self._now = 0

    def begin(self, prompt: bytes) -> int:
        """A reply to the prompt with this digest begins; returns its voter. Another prompt than
        before clears the pool.
        """
        if prompt != self.prompt:
            self.rows.fill(0)
            self.prompt, self._num_voters, self._now = prompt, 0, 0
        self._num_voters += 1
        return self._num_voters - 1

    def hear(self, text: NDArray[np.int32], begin: int, voter: int) -> None:
        """A voter's reply grew by text[begin:]; negative tokens stand before a text's beginning."""
        vote_text(self.rows, self._keys, text, begin, self._now, 1 << voter % _MOST_VOTERS)
        self._now = (self._now + len(text) - begin) % 2**30

    @property
    def size_bytes(self) -> int:
        """Bytes of the table, however many share it."""
        return self.rows.nbytes + self._keys.nbytes


class ConsensusPools:
    """The pools of several drafters, each of which brings one: replies to the same prompt share a
    pool, whoever writes them.
    """

    def __init__(self) -> None:
        self._pools: list[ConsensusPool] = []
        """The one left longest ago first."""

    def add(self, pool: ConsensusPool) -> None:
        """A drafter brings its own, and uses it."""
        pool.num_users = 1
        self._pools.append(pool)

    def choose(self, prompt: bytes, left: ConsensusPool) -> ConsensusPool:
        """The pool for a reply to the prompt with this digest, by a drafter that leaves another."""
        left.num_users -= 1
        self._pools.remove(left)
        self._pools.append(left)
        same = (pool for pool in self._pools if pool.prompt == prompt)
        unused = (
            pool for pool in self._pools if not pool.num_users
        )  # one at least, if only `left`
        chosen = next(same, None) or next(unused)
        chosen.num_users += 1
        return chosen


class ConsensusDrafter(TextDrafter):
    """Proposes what other replies to the same prompt said, by their votes.

    Drafters that were given the same `pools` hear each other. `size_bytes` has a pool in it, even
    when it is shared.
    """

    name = "consensus"
    orders = _ORDERS
    priors = priors_by_order(_ORDERS)
    kernels = Kernels(expand_votes, feed_nothing)

    def __init__(
        self,
        max_bytes: int = TextDrafter.default_bytes,
        *,
        source: int = 1,
        pools: ConsensusPools | None = None,
    ) -> None:
        super().__init__(max_bytes, source=source)
        keys_bytes = 16 * _ORDERS
        self._use(ConsensusPool(max_bytes - self._fixed_bytes - keys_bytes))
        self._pools = pools or ConsensusPools()
        self._pools.add(self.pool)
        self._voter = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def _use(self, pool: ConsensusPool) -> None:
        self.pool = pool
        self.table.bind(ROWS, pool.rows)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """A reply to the prompt `tokens` begins, one voter more if others replied to it before."""
        super().reset(tokens)
        digest = self._digest.digest()
        self._use(self._pools.choose(digest, self.pool))
        self._voter = self.pool.begin(digest)

    def hear_sibling(self, prompt_end: Sequence[int], reply: Sequence[int]) -> None:
        """Count a reply that was written elsewhere to the same prompt; `prompt_end` are the
        prompt's last tokens.
        """
        text = np.array([*prompt_end, *reply], np.int32)
        self.pool.hear(text, len(prompt_end), self.pool.begin(self._digest.digest()))

    def _forget(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)

    def _feed(self, tokens: NDArray[np.int32]) -> None:
        if self._words[PROMPT]:
            self._digest.update(tokens.tobytes())
        else:
            self.pool.hear(np.concatenate((self._tail, tokens)), len(self._tail), self._voter)
        super()._feed(tokens)

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays: exact, at most `max_bytes` when the pool is its own."""
        return self._fixed_bytes + self.pool.size_bytes
