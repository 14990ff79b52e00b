"""Text pieces from tokens as they arrive, whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns token ids into text piece by piece and never emits half a UTF-8 character.

    The pieces and the flush joined are `decode` of all ids: what cannot be completed any more
    becomes U+FFFD exactly as in `bytes.decode(errors="replace")`.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters this token completes, perhaps none."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """What is left at the end: nothing, or U+FFFD for a character cut short."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text
