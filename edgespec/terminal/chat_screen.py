"""The chat at a terminal, or one turn for each line of a pipe."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from edgespec.engine.reply_options import ReplyOptions
from edgespec.engine.request import check_options
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.system.option_fields import changed, options_of
from edgespec.terminal.opened_engine import opened_engine
from edgespec.terminal.progress import ProgressLine
from edgespec.terminal.text_io import decode, notices, printable, stats_line, write_pieces

if TYPE_CHECKING:
    from edgespec.engine.chat import Chat

_QUOTES = '"""'
_HELP = """\
/clear            start a new conversation
/set NAME VALUE   change an option; /set alone lists them
/stats            show or hide statistics after each reply
/help             show this help
/bye              quit (or press Ctrl-D)
\"\"\"               start and end a message of several lines
Ctrl-C            stop the reply; at the prompt, quit"""
_KINDS = (int, float, str)


def hold_chat(
    first: str | None,
    load: LoadOptions,
    reply: ReplyOptions,
    *,
    system: str | None,
    as_json: bool,
) -> bool:
    """Talk until the user leaves or the pipe ends; False when a turn of a pipe failed."""
    with opened_engine(load, reply) as (engine, progress):
        chat = engine.chat(system, prefix=reply.prefix)
        screen = ChatScreen(chat, replace(reply, prefix=None), progress, as_json)
        if not sys.stdin.isatty():
            screen.piped(first)
            return not screen.failed
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() its keys and history
        plan = engine.plan
        name = printable(engine.file.spec.name or engine.file.path.name)
        print(
            f"{name} · {plan.quantisation} · context {plan.context_length} tokens · "
            "/help for help, /bye to quit",
            file=sys.stderr,
        )
        screen.interactive(first)
    return True


def settable() -> dict[str, Callable[[str], Any]]:
    """What `/set` changes, by its name, and what reads a value: options of a reply with a value."""
    found = {}
    for name, (_, type_, option) in options_of(ReplyOptions).items():
        kind = (get_args(type_) or (type_,))[0]
        if option.shell and kind in _KINDS and name != "prefix":
            found[option.long(name).removeprefix("--")] = kind
    return found


@dataclass(slots=True)
class ChatScreen:
    """One conversation, written to stdout; what goes wrong in a turn leaves it as it was."""

    chat: Chat
    reply: ReplyOptions
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
            stream = self.chat.stream(text, **changed(self.reply))
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
            made = stream.reply
        except EdgeSpecError as error:
            self.complain(error)
            return
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
            print(notice, file=sys.stderr, flush=True)
        if self.show_stats:
            print(stats_line(made.stats), file=sys.stderr, flush=True)

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
            print(_HELP)
        elif name in ("/clear", "/reset"):
            self.chat.reset()
            print("Started a new conversation.")
        elif name == "/stats":
            self.show_stats = not self.show_stats
            print(f"Statistics are {'on' if self.show_stats else 'off'}.")
        elif name == "/set":
            self._set(words)
        else:
            print(f"Unknown command {printable(name)}; type /help for a list.")
        return True

    def _set(self, words: list[str]) -> None:
        known = settable()
        if not words:
            for name in known:
                print(f"{name:<18} {getattr(self.reply, name.replace('-', '_'))}")
            return
        if len(words) != 2 or words[0] not in known:
            print(f"/set takes a name and a value; the names are {', '.join(known)}.")
            return
        name, value = words
        try:
            changes = {name.replace("-", "_"): known[name](value)}
            reply = replace(self.reply, **changes)
            check_options(reply)
        except ValueError:
            print(f"{printable(value)} is not a number.")
        except OptionError as error:
            print(f"{error}.")
        else:
            self.reply = reply
            print(f"Set {name} to {value}.")


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
