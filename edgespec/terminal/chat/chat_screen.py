"""A conversation at a terminal, or one turn for each line of a pipe."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import field, replace
from typing import TYPE_CHECKING

from edgespec.engine.reply_options import ReplyOptions
from edgespec.errors import EdgeSpecError
from edgespec.system.option_fields import changed
from edgespec.system.records import dataclass
from edgespec.terminal.chat import chat_files
from edgespec.terminal.chat.chat_session import ChatSession
from edgespec.terminal.chat.stopping import stopping
from edgespec.terminal.show_pieces import show_pieces, show_text
from edgespec.terminal.text_io import decode, notices, printable, stats_line

if TYPE_CHECKING:
    from edgespec.engine.reply import Reply, Stats


@dataclass(slots=True)
class ChatScreen:
    """One conversation, written to stdout; what goes wrong in a turn leaves it as it was."""

    session: ChatSession
    reply: ReplyOptions
    """How replies are drawn from here on."""
    as_json: bool = False
    markdown: bool = False
    show_stats: bool = False
    failed: bool = False
    """Whether any turn ended in an error."""
    keeps: bool = False
    """Whether the conversation is written to a file after every turn."""
    attached: list[str] = field(default_factory=list)
    """Texts that go before the next message."""
    last_stats: Stats | None = None
    num_retries: int = 0

    def piped(self, first: str | None) -> None:
        """A turn for each line of standard input that is not empty."""
        if first is not None:
            self.turn(first)
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                text = decode(line, f"line {number} of standard input").strip()
            except EdgeSpecError as error:
                self.complain(error)
                continue
            if text:
                self.turn(text)

    def turn(self, text: str, *, retry: int = 0) -> bool:
        """Write the reply to one message, False where that failed; Ctrl-C stops it, and what was
        written stays.
        """
        self.num_retries = retry
        message = "\n\n".join([*self.attached, text])
        options = self.reply
        if retry and options.seed is not None:  # the same seed would say the same again
            options = replace(options, seed=options.seed + retry)
        try:
            stream = self.session.chat.stream(message, **changed(options))
            try:
                with stopping(stream):
                    if self.as_json:
                        for _ in stream:
                            pass
                    else:
                        show_pieces(stream, markdown=self.markdown)
            finally:
                self.session.progress.clear()
                stream.close()
                self.attached.clear()
                self.keep()
            made = stream.reply
        except EdgeSpecError as error:
            self.complain(error)
            return False
        self.last_stats = made.stats
        self._finish(made)
        return True

    def _finish(self, made: Reply) -> None:
        if self.as_json:
            fields = {
                "text": made.text,
                "reasoning": made.reasoning,
                "token_ids": made.token_ids,
                "finish_reason": made.finish_reason,
                "stats": made.stats.as_dict(),
            }
            print(json.dumps(fields, ensure_ascii=False), flush=True)
            return
        for notice in notices(made):
            self._remark(notice)
        if self.show_stats:
            self._remark(stats_line(made.stats))
        if self.keeps:
            self.say("")

    def keep(self) -> None:
        """Write the conversation down, so that it can be resumed."""
        place = chat_files.last_place() if self.keeps else None
        if place is None:
            return
        try:
            chat_files.make_room(place)
            self.session.chat.save(place)
        except (OSError, EdgeSpecError) as error:
            self.keeps = False
            print(f"edgespec: this conversation cannot be kept: {error}", file=sys.stderr)

    def say(self, text: str) -> None:
        """A line that is no part of a reply."""
        if sys.stdout.isatty():
            show_text(text)
        else:
            print(text, flush=True)

    def complain(self, error: EdgeSpecError) -> None:
        """Say what went wrong with a turn; the conversation goes on."""
        self.session.progress.clear()
        self.failed = True
        self._remark(f"edgespec: {printable(str(error))}")
        if self.keeps:
            self.say("")

    def _remark(self, text: str) -> None:
        """A line on stderr, which is one line where programs read it."""
        if sys.stderr.isatty():
            text = textwrap.fill(text, max(shutil.get_terminal_size().columns - 1, 20))
        print(text, file=sys.stderr, flush=True)
