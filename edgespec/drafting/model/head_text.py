"""A draft head's own text: the states that a model left, and the head's keys and values of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Pass, TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.memory.plan.head_sizes import HEAD_NODES, KEPT_STATES


class HeadText:
    """Follows a model's sequence: for each position p, the head reads its state and token p + 1.

    What was not read yet waits, the last `KEPT_STATES` positions or half of them: a head that is
    not asked for long costs nothing, and goes on from there. The last position's state always
    waits, because its token is not committed.
    """

    def __init__(self, head: KvSequence, width: int) -> None:
        self._head = head
        self._states = np.zeros((KEPT_STATES, width), np.float32)
        self._tokens = np.zeros(KEPT_STATES, np.int32)
        """The tokens at the positions of these states."""
        self._num_waiting = 0
        self._end = 0
        """The position after the last that waits."""
        self._read = np.zeros(head.target.context_length, np.int32)
        """The positions that the head has read, ascending."""
        self._num_read = 0
        self._passed: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
        self.reads_prompts = True
        """Whether it reads along while the model does; otherwise their last tokens wait."""

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
        kept = max(length - (self._end - self._num_waiting), 0)
        self._num_waiting = min(self._num_waiting, kept)
        self._end = min(self._end, length)
        # What was read of the last position went with a token that may be another now.
        most = self._read[: self._num_read]
        self._num_read = int(np.searchsorted(most, length - 1))
        self._passed = None

    @property
    def room(self) -> int:
        """Tokens that can be drafted now; 0 where the model's last state is not known."""
        if not self._num_waiting:
            return 0
        return self._head.target.context_length - self._num_read - self._num_waiting

    def catch_up(self, last: int) -> Pass:
        """What follows the text, whose last token was not committed."""
        waiting = self._num_waiting
        if waiting > HEAD_NODES:
            self._head.truncate(self._num_read)
            most = waiting - 1
            self._prefill(self._end - waiting, self._tokens[1:waiting], self._states[:most])
            self._forget(most)
            waiting = 1
        self._head.truncate(self._num_read)
        tokens = np.append(self._tokens[1:waiting], np.int32(last))
        found = self._forward(tokens, self._states[:waiting])
        positions = np.arange(self._end - waiting, self._end - 1)
        self._note(positions)
        self._forget(waiting - 1)
        return found

    def go_on(self, token: int, before: Pass, *, is_asked: bool = True) -> Pass:
        """What follows a drafted token, by what the head's last pass left."""
        assert before.hidden is not None
        rows = before.hidden[-1:]
        return self._forward(np.array([token], np.int32), rows, is_asked=is_asked)

    def _forward(
        self, tokens: NDArray[np.int32], states: NDArray[np.float32], *, is_asked: bool = True
    ) -> Pass:
        tree = TokenTree.chain(tokens, states)
        found = self._head.forward(tree, rows="last" if is_asked else "none")
        self._head.commit(range(len(tokens)))
        return found

    def _waits_at(self, length: int) -> bool:
        """Whether the state of the position before this one waits."""
        return self._num_waiting > 0 and self._end == length

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
        return self._states.nbytes + self._tokens.nbytes + self._read.nbytes
