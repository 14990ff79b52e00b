"""What may be written next, of a reply that a grammar binds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Logits
from edgespec.errors import BackendError
from edgespec.models.grammars import end_token, matcher_of
from edgespec.models.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

_OUT = np.float32(-np.inf)


class Constraint:
    """Where one reply stands in its grammar; it moves on with the tokens that are drawn.

    Where the grammar leaves one text alone, it is written in the tokenizer's own tokens: so drafts
    of such text are always right.
    """

    def __init__(self, tokenizer: Tokenizer, grammar: str) -> None:
        """Raises OptionError for a grammar that cannot be read."""
        self._matcher: llguidance.LLMatcher = matcher_of(tokenizer, grammar)
        self._end, self._ends = end_token(tokenizer), sorted(tokenizer.end_ids)
        num_words = -(-tokenizer.vocab_size // 32)
        self._bits = np.zeros(num_words, np.uint32)

    def mask(self, row: Logits) -> None:
        """Leave out of a row of logits [vocab] what may not come next, in place."""
        allowed = self._allowed(len(row))
        row[~allowed] = _OUT

    def _allowed(self, vocab_size: int) -> NDArray[np.bool_]:
        matcher = self._matcher
        allowed = np.zeros(vocab_size, np.bool_)
        if matcher.is_stopped():
            allowed[self._ends] = True
            return allowed
        forced = matcher.compute_ff_tokens()
        if forced:
            allowed[forced[0]] = True
            return allowed
        matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if matcher.is_error():
            raise BackendError(f"the grammar cannot be followed: {matcher.get_error()}")
        found = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        known = min(len(found), vocab_size)
        allowed[:known] = found[:known]
        if allowed[self._end]:
            allowed[self._ends] = True
        return allowed

    def take(self, token: int) -> None:
        """A token was drawn."""
        matcher = self._matcher
        if not matcher.is_stopped():
            matcher.consume_token(self._end if token in self._ends else token)

    def forced(self) -> list[int]:
        """The tokens that must come next, as far as there is no choice."""
        return [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())
