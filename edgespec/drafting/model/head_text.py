"""A draft head's own text: the states that a model left, and the head's keys and values of them."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Pass
from edgespec.backends.sequence import KvSequence
from edgespec.drafting.model.waiting_states import WaitingStates
from edgespec.memory.plan.head_sizes import HEAD_NODES


class HeadText(WaitingStates):
    """For each position p of a model's sequence, the head reads its state and token p + 1.

    A head that is not asked for long costs nothing, and goes on from what waits.
    """

    def __init__(self, head: KvSequence, width: int) -> None:
        super().__init__(head, width)
        self._read = np.zeros(head.target.context_length, np.int32)
        """The positions that the head has read, ascending."""
        self._num_read = 0

    def prefilled(
        self, length: int, tokens: NDArray[np.int32], hidden: NDArray[np.float32]
    ) -> None:
        first = length - 1 if self._waits_at(length) else length
        if not self.reads_prompts or length + len(tokens) - first < 2:
            self._wait(length, tokens, hidden)
            return
        if first < length:
            self._read_waiting(int(tokens[0]))
        self._prefill(length, tokens[1:], hidden[:-1])
        self._num_waiting = 0
        self._wait(length + len(tokens) - 1, tokens[-1:], hidden[-1:])

    def truncated(self, length: int) -> None:
        super().truncated(length)
        # What was read of the last position went with a token that may be another now.
        most = self._read[: self._num_read]
        self._num_read = int(np.searchsorted(most, length - 1))

    @property
    def room(self) -> int:
        """Tokens that can be drafted now; 0 where the model's last state is not known."""
        if not self._num_waiting:
            return 0
        return self._head.target.context_length - self._num_read - self._num_waiting

    def catch_up(self, last: int) -> Pass:
        """What follows the text, whose last token was not committed."""
        waiting, self.late_s = self._num_waiting, 0.0
        if waiting > HEAD_NODES:
            start, most = time.perf_counter(), waiting - 1
            self._head.truncate(self._num_read)
            self._prefill(self._end - waiting, self._tokens[1:waiting], self._states[:most])
            self._forget(most)
            waiting, self.late_s = 1, time.perf_counter() - start
        self._head.truncate(self._num_read)
        tokens = np.append(self._tokens[1:waiting], np.int32(last))
        found = self._forward(tokens, self._states[:waiting])
        positions = np.arange(self._end - waiting, self._end - 1)
        self._note(positions)
        self._forget(waiting - 1)
        return found

    def _forward(
        self, tokens: NDArray[np.int32], states: NDArray[np.float32], *, is_asked: bool = True
    ) -> Pass:
        found = super()._forward(tokens, states, is_asked=is_asked)
        self._head.commit(range(len(tokens)))
        return found

    def _waits_at(self, length: int) -> bool:
        """Whether the state of the position before this one waits."""
        return self._num_waiting > 0 and self._end == length

    def _read_waiting(self, following: int) -> None:
        """Read all that waits, now that the token after it is known."""
        waiting = self._num_waiting
        tokens = np.append(self._tokens[1:waiting], np.int32(following))
        self._prefill(self._end - waiting, tokens, self._states[:waiting])

    def _prefill(self, first: int, tokens: NDArray[np.int32], states: NDArray[np.float32]) -> None:
        """Read the states of positions from `first` on, each with the token after it."""
        self._head.truncate(self._num_read)
        room = self._head.target.context_length - self._num_read
        tokens, states = tokens[:room], states[:room]
        if len(tokens):
            self._head.prefill(tokens, states=states)
            self._note(np.arange(first, first + len(tokens)))

    def _note(self, positions: NDArray[np.int64]) -> None:
        end = self._num_read + len(positions)
        self._read[self._num_read : end] = positions
        self._num_read = end

    @property
    def size_bytes(self) -> int:
        """Bytes of what waits, which a plan counts with the head's."""
        return super().size_bytes + self._read.nbytes
