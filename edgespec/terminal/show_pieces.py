"""A reply on stdout while it is written: as it is in a pipe, laid out at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from edgespec.terminal.text_io import printable

if TYPE_CHECKING:
    from edgespec.models.reasoning import Piece

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class _View(Protocol):
    def write(self, text: str) -> None: ...
    def flush(self) -> None: ...


def show_pieces(pieces: Iterator[Piece], *, markdown: bool = False) -> None:
    """Print a reply as it comes and end it with a line end, also when it is cut short.

    At a terminal lines break between words and reasoning is dim, a blank line above the answer; of
    a pipe reasoning is left out.
    """
    if sys.stdout.isatty():
        _at_terminal(pieces, markdown)
    else:
        _in_pipe(pieces)


def show_text(text: str, *, markdown: bool = False) -> None:
    """Print a text as `show_pieces` prints an answer."""
    view = _view(markdown)
    view.write(printable(text))
    view.flush()
    if not markdown and not text.endswith("\n"):
        _write("\n")


def _in_pipe(pieces: Iterator[Piece]) -> None:
    last = ""
    try:
        for piece in pieces:
            if not piece.reasoning:
                last = piece  # before it is written, where Ctrl-C may come
                _write(piece)
    finally:
        if last and not last.endswith("\n"):
            _write("\n")


def _at_terminal(pieces: Iterator[Piece], markdown: bool) -> None:
    view, dim, last = _view(False), False, ""
    begun = False
    try:
        for piece in pieces:
            if piece.reasoning != dim or not begun:
                view.flush()
                if piece.reasoning != dim:
                    dim = piece.reasoning
                    _write(DIM if dim else PLAIN + "\n\n")
                view, begun = _view(markdown and not dim), True
            last = piece
            view.write(printable(piece))
    finally:
        view.flush()
        if dim:
            _write(PLAIN)
        if last and not last.endswith("\n") and (dim or not markdown):
            _write("\n")


def _view(markdown: bool) -> _View:
    if markdown:
        from edgespec.terminal.grid import wide_console
        from edgespec.terminal.markdown_text import MarkdownText

        return MarkdownText(wide_console())
    from edgespec.terminal.wrapped_text import WrappedText  # brings Rich, which pipes do not need

    return WrappedText(_write)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
