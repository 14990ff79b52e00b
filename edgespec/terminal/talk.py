"""The chat at a terminal, or one turn for each line of a pipe."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgespec.errors import EdgeSpecError, OptionError
from edgespec.terminal.text_io import decode, notices, printable, stats_line

if TYPE_CHECKING:
    from edgespec.engine.chat import Chat
    from edgespec.terminal.options import ReplyOptions
    from edgespec.terminal.progress import ProgressLine

_QUOTES = '"""'
_HELP = """\
/clear            forget the conversation
/set NAME VALUE   one of {names}
/stats            show or hide the numbers after each reply
/help             this
/bye              leave; so does Ctrl-D
\"\"\"               begin and end a message of several lines
Ctrl-C            stop the reply; at the prompt, leave"""
_SETTINGS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top-k": int,
    "top-p": float,
    "min-p": float,
    "repetition-penalty": float,
    "max-tokens": int,
    "seed": int,
    "accept": str,
    "on-overflow": str,
}


@dataclass(slots=True)
class Talk:
    """One conversation, written to stdout; what goes wrong in a turn leaves it as it was."""

    chat: Chat
    options: ReplyOptions
    progress: ProgressLine
    as_json: bool = False
    show_stats: bool = False
    failed: bool = False
    """Whether any turn ended in an error."""

    def interactive(self, first: str | None) -> None:
        """Prompt, reply, and again until /bye, Ctrl-D or Ctrl-C at the prompt."""
        if first is not None:
            print(f">>> {first}")
            self.turn(first)
        while (text := _typed()) is not None:
            if text.startswith("/"):
                if not self.command(text):
                    return
            elif text.strip():
                with contextlib.suppress(KeyboardInterrupt):
                    self.turn(text)

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

    def turn(self, text: str) -> None:
        """Write the reply to one message; Ctrl-C stops it, and what was written stays."""
        try:
            stream = self.chat.stream(text, **self.options.as_arguments())
            try:
                if self.as_json:
                    for _ in stream:
                        pass
                else:
                    write_pieces(stream)
            except KeyboardInterrupt:
                self.progress.clear()
                stream.close()
                raise
            reply = stream.reply
        except EdgeSpecError as error:
            self.complain(error)
            return
        if self.as_json:
            fields = {
                "text": reply.text,
                "token_ids": reply.token_ids,
                "finish_reason": reply.finish_reason,
                "stats": reply.stats.as_dict(),
            }
            print(json.dumps(fields, ensure_ascii=False), flush=True)
            return
        for notice in notices(reply):
            print(notice, file=sys.stderr, flush=True)
        if self.show_stats:
            print(stats_line(reply.stats), file=sys.stderr, flush=True)

    def complain(self, error: EdgeSpecError) -> None:
        """Say what went wrong with a turn; the conversation goes on."""
        self.progress.clear()
        self.failed = True
        print(f"edgespec: {printable(str(error))}", file=sys.stderr, flush=True)

    def command(self, line: str) -> bool:
        """Do what a line that starts with a slash says; False when it says to leave."""
        name, *words = line.split()
        if name in ("/bye", "/exit", "/quit"):
            return False
        if name in ("/help", "/?"):
            print(_HELP.format(names=", ".join(_SETTINGS)))
        elif name in ("/clear", "/reset"):
            self.chat.reset()
            print("The conversation starts over.")
        elif name == "/stats":
            self.show_stats = not self.show_stats
            print(f"Numbers after each reply: {'on' if self.show_stats else 'off'}.")
        elif name == "/set":
            self._set(words)
        else:
            print(f"There is no command {printable(name)}; /help lists them.")
        return True

    def _set(self, words: list[str]) -> None:
        if len(words) != 2 or words[0] not in _SETTINGS:
            print(f"/set takes a name and a value; names: {', '.join(_SETTINGS)}.")
            return
        name, value = words
        try:
            changes = {name.replace("-", "_"): _SETTINGS[name](value)}
            changed = replace(self.options, **changes)
            changed.check()
        except ValueError:
            print(f"{printable(value)} is not a number.")
        except OptionError as error:
            print(f"{error}.")
        else:
            self.options = changed
            print(f"{name} is {value}.")


def write_pieces(pieces: Iterator[str]) -> None:
    """Print a reply as it comes and end it with a line end, also when it is cut short."""
    clean = printable if sys.stdout.isatty() else str
    last = ""
    try:
        for last in pieces:
            sys.stdout.write(clean(last))
            sys.stdout.flush()
    finally:
        if last and not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def _typed() -> str | None:
    """A message typed at the prompt, None at the end of input; triple quotes span lines."""
    try:
        text = input(">>> ")
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print()
        raise
    if not text.startswith(_QUOTES):
        return text
    lines = [text[len(_QUOTES) :]]
    try:
        while not lines[-1].rstrip().endswith(_QUOTES):
            lines.append(input("... "))
    except (EOFError, KeyboardInterrupt):
        print()
        return ""
    lines[-1] = lines[-1].rstrip()[: -len(_QUOTES)]
    return "\n".join(lines).strip("\n")
