"""What may be written next, of a reply that a grammar binds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Logits
from edgespec.errors import BackendError
from edgespec.models.grammars import end_token, longest_tokens, matcher_of
from edgespec.models.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

_OUT = np.float32(-np.inf)


class Constraint:
    """Where one reply stands in its grammar; it moves on with the tokens that are drawn.

    Where the grammar leaves one text alone, it is written in the tokenizer's own tokens: so drafts
    of such text are always right. The last bytes of it may be the beginning of a longer token, so
    they are drafted as the token that they are alone, as long as that is right half of the time.
    """

    def __init__(self, tokenizer: Tokenizer, grammar: str, after: str = "") -> None:
        """`after` is a text that the grammar has gone through, if it allows it. Raises OptionError
        for a grammar that cannot be read.
        """
        self._matcher: llguidance.LLMatcher = matcher_of(tokenizer, grammar)
        gone = tokenizer.encode(after, add_bos=False) if after else []
        if gone and self._matcher.validate_tokens(gone) == len(gone):
            self._matcher.consume_tokens(gone)
        self._tokenizer = tokenizer
        self._end, self._ends = end_token(tokenizer), sorted(tokenizer.end_ids)
        num_words = -(-tokenizer.vocab_size // 32)
        self._bits = np.zeros(num_words, np.uint32)
        self._must: list[int] | None = None
        """The tokens that must come next, once that is known."""
        self._guess: int | None = None
        """What was drafted after them."""
        self._num_guesses = self._num_right = 0

    @property
    def is_over(self) -> bool:
        """Whether the reply is whole, and nothing may follow."""
        stopped: bool = self._matcher.is_stopped()
        return stopped

    @property
    def forced(self) -> list[int]:
        """The tokens that must come next, as far as there is no choice.

        Asked for at every position or not, they are those that were found where they began.
        """
        if self._must is None:
            self._must = [] if self.is_over else self._matcher.compute_ff_tokens()
        return self._must

    def drafts(self) -> list[int]:
        """Tokens of the text that must come next: those that are certain, then those that are not
        because its last bytes may be part of a longer one.
        """
        forced, matcher = self.forced, self._matcher
        if self.is_over or 2 * self._num_right + 1 < self._num_guesses:
            return forced
        if forced:
            matcher = matcher.deep_copy()
            matcher.consume_tokens(forced)
        rest = matcher.compute_ff_bytes()
        if not rest:
            return forced
        guesses = longest_tokens(self._tokenizer, rest)
        guesses = guesses[: matcher.validate_tokens(guesses)]
        self._guess = guesses[0] if guesses else None
        return [*forced, *guesses]

    def finish(self, most: int) -> list[int]:
        """All that is to come, if there is no choice left about any of it and it is at most so many
        tokens; they count as drawn. Else nothing.
        """
        rest = self.forced[:]
        if not 0 < len(rest) <= most:
            return []
        ahead = self._matcher.deep_copy()
        ahead.consume_tokens(rest)
        if not ahead.is_stopped():
            return []
        for token in rest:
            self.take(token)
        return rest

    def allowed(self, tokens: NDArray[np.int32], parents: NDArray[np.int16]) -> list[int]:
        """The nodes of a tree of drafts that the grammar allows, with all that are above them."""
        drafts, above, kept = tokens.tolist(), parents.tolist(), {0}
        for leaf in set(range(len(drafts))).difference(above):
            path, node = [], leaf
            while node:
                path.append(node)
                node = above[node]
            path.reverse()
            spelled = [self._known(drafts[node]) for node in path]
            kept.update(path[: self._matcher.validate_tokens(spelled)])
        return sorted(kept)

    def allows(self, token: int) -> bool:
        """Whether a token may come next: for one token, far quicker than a mask."""
        allowed: int = self._matcher.validate_tokens([self._known(token)])
        return allowed == 1

    def mask(self, row: Logits) -> None:
        """Leave out of a row of logits [vocab] what may not come next, in place."""
        matcher = self._matcher
        if matcher.is_stopped():
            ends = row[self._ends]
            row[:] = _OUT
            row[self._ends] = ends
            return
        matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=len(row))
        if allowed[self._end]:
            allowed[self._ends] = 1
        np.copyto(row, _OUT, where=allowed == 0)

    def take(self, token: int) -> None:
        """A token was drawn."""
        if self._must:
            del self._must[0]
        elif self._guess is not None:
            self._num_guesses += 1
            self._num_right += token == self._guess
            self._guess = None
        if not self._must:
            self._must = None
        if not self.is_over:
            self._matcher.consume_token(self._known(token))
            self._check()

    def _known(self, token: int) -> int:
        """A token as the grammar knows it, where one stands for all that end a reply."""
        return self._end if token in self._ends else token

    def _check(self) -> None:
        if self._matcher.is_error():
            raise BackendError(f"the grammar cannot be followed: {self._matcher.get_error()}")
