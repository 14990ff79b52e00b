"""Text that comes in pieces, its lines broken between words."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from rich.cells import cell_len

FENCES = ("```", "~~~")


def terminal_width() -> int:
    """Columns of the terminal now; it may be resized at any time."""
    return max(shutil.get_terminal_size().columns, 2)


class WrappedText:
    """Writes pieces of text as wide as a terminal.

    A word is held back until a space or a line end says that it is whole. Lines of fenced code are
    written as they are, so that they can be copied.
    """

    def __init__(
        self, write: Callable[[str], object], width: Callable[[], int] = terminal_width
    ) -> None:
        self._write, self._width = write, width
        self._gap = self._word = self._line = ""
        self._column = 0
        self._in_code = False
        self._out: list[str] = []

    def write(self, text: str) -> None:
        """The next piece."""
        for character in text:
            if character == "\n":
                self._end_line()
                continue
            self._line += character
            if self._in_code:
                self._out.append(character)
            elif character in " \t":
                self._end_word()
                self._gap += character
            elif cell_len(character) > 1:  # of scripts that put no spaces between words
                self._end_word()
                self._word = character
                self._end_word()
            else:
                self._word += character
        self._send()

    def flush(self) -> None:
        """Write what was held back."""
        self._end_word()
        self._send()

    def _end_line(self) -> None:
        self._end_word()
        if self._line.lstrip().startswith(FENCES):
            self._in_code = not self._in_code
        self._out.append("\n")
        self._gap = self._line = ""
        self._column = 0

    def _end_word(self) -> None:
        if not self._word:
            return
        width, needed = self._width(), cell_len(self._gap) + cell_len(self._word)
        if self._column and self._column + needed > width:
            self._out.append("\n")
            self._gap, self._column = "", 0
        self._out.append(self._gap + self._word)
        self._column += cell_len(self._gap) + cell_len(self._word)
        while self._column > width:  # a word as long as a line, which the terminal breaks
            self._column -= width
        self._gap = self._word = ""

    def _send(self) -> None:
        if self._out:
            self._write("".join(self._out))
            self._out.clear()
