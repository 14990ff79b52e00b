"""The states that a model left for its head, and that the head has not read yet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Pass, TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.memory.plan.head_sizes import KEPT_STATES


class WaitingStates:
    """Follows a model's sequence and keeps what waits, the last `KEPT_STATES` positions or half of
    them. The last position's state always waits, because the token after it is not committed.
    """

    def __init__(self, head: KvSequence, width: int) -> None:
        self._head = head
        self._states = np.zeros((KEPT_STATES, width), np.float32)
        self._tokens = np.zeros(KEPT_STATES, np.int32)
        """The tokens at the positions of these states."""
        self._num_waiting = 0
        self._end = 0
        """The position after the last that waits."""
        self._passed: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
        self.reads_prompts = True
        """Whether it reads along while the model does; otherwise their last tokens wait."""

    late_s = 0.0
    """Seconds of the last `catch_up` that went into what had long waited."""

    def attach(self, sequence: KvSequence) -> None:
        """Follow this sequence."""
        sequence.follower = self

    def passed(self, tokens: NDArray[np.int32], hidden: NDArray[np.float32]) -> None:
        self._passed = tokens, hidden

    def committed(self, length: int, path: Sequence[int]) -> None:
        if self._passed is None:
            return
        tokens, hidden = self._passed
        if len(path) == 1:  # plain decoding, every step
            self._wait(length, tokens[:1], hidden[:1])
        else:
            nodes = [*path]
            self._wait(length, tokens[nodes], hidden[nodes])

    def prefilled(
        self, length: int, tokens: NDArray[np.int32], hidden: NDArray[np.float32]
    ) -> None:
        self._wait(length, tokens, hidden)

    def truncated(self, length: int) -> None:
        kept = max(length - (self._end - self._num_waiting), 0)
        self._num_waiting = min(self._num_waiting, kept)
        self._end = min(self._end, length)
        self._passed = None

    def go_on(self, token: int, before: Pass, *, is_asked: bool = True) -> Pass:
        """What follows a drafted token, by what the head's last pass left."""
        assert before.hidden is not None
        rows = before.hidden[-1:]
        return self._forward(np.array([token], np.int32), rows, is_asked=is_asked)

    def _forward(
        self, tokens: NDArray[np.int32], states: NDArray[np.float32], *, is_asked: bool = True
    ) -> Pass:
        """A pass over a chain, of which nothing is committed."""
        return self._head.forward(
            TokenTree.chain(tokens, states), rows="last" if is_asked else "none"
        )

    def _wait(self, first: int, tokens: NDArray[np.int32], hidden: NDArray[np.float32]) -> None:
        """Keep the states of positions from `first` on until they are read."""
        if self._end != first:  # something between is not known
            self._num_waiting = 0
        self._end = first + len(tokens)
        tokens, hidden = tokens[-KEPT_STATES:], hidden[-KEPT_STATES:]
        if self._num_waiting + len(tokens) > KEPT_STATES:  # half at once: it moves the others
            self._forget(min(max(len(tokens), KEPT_STATES // 2), self._num_waiting))
        end = self._num_waiting + len(tokens)
        self._tokens[self._num_waiting : end] = tokens
        self._states[self._num_waiting : end] = hidden
        self._num_waiting = end

    def _forget(self, count: int) -> None:
        """The first so many do not wait any more."""
        left = self._num_waiting - count
        if count:
            self._tokens[:left] = self._tokens[count : self._num_waiting].copy()
            self._states[:left] = self._states[count : self._num_waiting].copy()
        self._num_waiting = left

    @property
    def size_bytes(self) -> int:
        """Bytes of what waits, which a plan counts with the head's."""
        return self._states.nbytes + self._tokens.nbytes


class LentText(WaitingStates):
    """The text of a head that reads the model's own keys and values and keeps none: all it needs is
    the last position's state.
    """

    def attach(self, sequence: KvSequence) -> None:
        super().attach(sequence)
        self._head.lender = sequence

    @property
    def room(self) -> int:
        """Tokens that can be drafted now; 0 where the model's last state is not known."""
        lender = self._head.lender
        if not self._num_waiting or lender is None or self._end != lender.length:
            return 0
        return self._head.target.context_length - self._end

    def catch_up(self, last: int) -> Pass:
        """What follows the text, whose last token was not committed."""
        row = self._num_waiting - 1
        return self._forward(np.array([last], np.int32), self._states[row : row + 1])
