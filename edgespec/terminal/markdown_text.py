"""Markdown that comes in pieces: a block is drawn anew while it grows, and stays when it ends."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment

from edgespec.terminal.wrapped_text import FENCES

_PER_SECOND = 8


class _Block:
    """One block as Rich draws it, without the empty lines above and below."""

    def __init__(self, text: str) -> None:
        # Where a link leads to is shown, not hidden behind words that the model chose.
        self._markdown = Markdown(text, hyperlinks=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._markdown, options, pad=False)
        filled = [
            number for number, line in enumerate(lines) if any(part.text.strip() for part in line)
        ]
        for line in lines[filled[0] : filled[-1] + 1] if filled else ():
            yield from line
            yield Segment.line()


class MarkdownText:
    """Writes pieces of Markdown to a terminal, one block after the other."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._block: list[str] = []
        """Whole lines of the block that grows."""
        self._line = ""
        self._in_code = False
        self._live: Live | None = None
        self._num_blocks = 0

    def write(self, text: str) -> None:
        """The next piece."""
        *lines, rest = (self._line + text).split("\n")
        for line in lines:
            self._line = ""
            if line.lstrip().startswith(FENCES):
                self._in_code = not self._in_code
            if line.strip() or self._in_code:
                self._block.append(line)
            else:
                self._end_block()
        self._line = rest
        self._draw()

    def flush(self) -> None:
        """Draw what is left."""
        if self._line:
            self._block.append(self._line)
            self._line = ""
        self._end_block()

    def _draw(self) -> None:
        text = "\n".join([*self._block, self._line])
        if not text.strip():
            return
        if self._live is None:
            if self._num_blocks:
                self._console.print()
            self._live = Live(
                console=self._console,
                refresh_per_second=_PER_SECOND,
                vertical_overflow="ellipsis",
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(_Block(text))

    def _end_block(self) -> None:
        self._draw()
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._num_blocks += 1
        self._block.clear()
