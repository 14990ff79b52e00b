"""Texts that end a reply, found as it is written."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.models.reasoning import Piece


class StopTexts:
    """Lets an answer through up to the first of some texts, and holds back what may begin one.

    Thoughts pass as they are. What was found is decided by the answer's text alone, one token after
    the other, so it does not matter how many of them a step brought.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._held = ""
        self.found = ""
        """The text that ended the reply; "" as long as none did."""

    def push(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What of these pieces can be shown."""
        shown: list[Piece] = []
        for piece in pieces:
            if piece.reasoning:
                shown.append(piece)
            elif not self.found:
                shown.append(Piece(self._take(piece)))
        return shown

    def _take(self, text: str) -> str:
        text = self._held + text
        places = [(text.find(stop), -len(stop), stop) for stop in self._texts if stop in text]
        if places:
            place, _, self.found = min(places)
            self._held = ""
            return text[:place]
        held = max(_overlap(text, stop) for stop in self._texts)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> list[Piece]:
        """What was held back, at the end of a reply that none of the texts ended."""
        held, self._held = self._held, ""
        return [Piece(held)] if held else []


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of a text that may be the beginning of a stop text."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)
