"""What can be typed in a chat besides messages: lines that begin with a slash."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.engine.saved_chat import SavedChat
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.system.records import dataclass
from edgespec.terminal.chat import chat_files
from edgespec.terminal.chat.attached_file import attached_file
from edgespec.terminal.chat.quiet_keys import usual_keys
from edgespec.terminal.chat.settings import set_option, settable, shown
from edgespec.terminal.text_io import printable, stats_line

if TYPE_CHECKING:
    from edgespec.terminal.chat.chat_prompt import Completions
    from edgespec.terminal.chat.chat_screen import ChatScreen

Run = Callable[["ChatScreen", str], bool]
"""Does what a command says, given what stands after its name; False ends the chat."""
_NAME = re.compile(r"/[a-z?]+")
_START = 60
_KEYS = (
    ("Alt-Enter", "start a new line; so do Ctrl-J, and Enter after a backslash"),
    ('"""', "around a message of several lines"),
    ("Ctrl-C", "stop the reply, or clear what is typed"),
    ("Ctrl-R", "search what was typed before"),
    ("Ctrl-X Ctrl-E", "write the message in $EDITOR"),
    ("Ctrl-D", "quit"),
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the table."""

    name: str
    arguments: str
    help: str
    run: Run
    aliases: tuple[str, ...] = ()
    completions: Completions | None = None


def find_command(text: str) -> tuple[Command | None, str]:
    """The command that a message is, and what follows its name; None for a message to the model,
    which may begin with a path. Raises nothing: an unknown command says so when it is run.
    """
    name, _, rest = text.strip().partition(" ")
    if "\n" in text.strip() or not _NAME.fullmatch(name):
        return None, text
    for command in COMMANDS:
        if name in (command.name, *command.aliases):
            return command, rest.strip()
    if Path(name).exists():  # /etc, /tmp
        return None, text
    return Command(name, "", "", _unknown(name)), rest


def show_last_turn(screen: ChatScreen) -> None:
    """Remind the reader of where a conversation stood."""
    turns = screen.session.chat.messages
    num = sum(turn["role"] == "user" for turn in turns)
    screen.say(f"A conversation of {num} turn{'' if num == 1 else 's'}.")
    for turn in turns[-2:]:
        if turn["role"] == "user":
            screen.say(f">>> {printable(turn['content'])}")
        elif turn["role"] == "assistant":
            from edgespec.terminal.show_pieces import show_text

            show_text(turn["content"], markdown=screen.markdown)


def _unknown(name: str) -> Run:
    def run(screen: ChatScreen, rest: str) -> bool:
        del rest
        near = difflib.get_close_matches(name, HELP, 1)
        hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
        screen.say(f"There is no command {name}; {hint}")
        return True

    return run


def _help(screen: ChatScreen, rest: str) -> bool:
    del screen, rest
    from rich.text import Text

    from edgespec.terminal.grid import grid, wide_console

    table = grid({"no_wrap": True}, {"overflow": "fold"})
    for command in COMMANDS:
        table.add_row(Text(f"{command.name} {command.arguments}".strip()), Text(command.help))
    table.add_row("", "")
    for key, said in _KEYS:
        table.add_row(Text(key), Text(said))
    wide_console().print(table)
    return True


def _bye(screen: ChatScreen, rest: str) -> bool:
    del screen, rest
    return False


def _clear(screen: ChatScreen, rest: str) -> bool:
    del rest
    screen.session.chat.reset()
    screen.attached.clear()
    screen.say("Started a new conversation.")
    return True


def _system(screen: ChatScreen, rest: str) -> bool:
    chat = screen.session.chat
    if not rest:
        known = chat.system
        screen.say("There is no system message." if known is None else printable(known))
        return True
    chat.system = None if rest == "none" else rest
    screen.say("The system message is gone." if rest == "none" else "Set the system message.")
    screen.keep()
    return True


def _save(screen: ChatScreen, rest: str) -> bool:
    if not rest:
        raise OptionError("/save takes a name, or the path of a .json file")
    place = chat_files.place_of(rest)
    chat_files.make_room(place)
    was_there = place.exists()
    if was_there:
        SavedChat.read(place)  # what is something else is not overwritten
    try:
        screen.session.chat.save(place)
    except OSError as error:
        raise EdgeSpecError(f"cannot write {place}: {error.strerror or error}") from None
    screen.say(f"Saved to {place}{', in place of what it held' if was_there else ''}.")
    return True


def _load(screen: ChatScreen, rest: str) -> bool:
    if not rest:
        names = [name for name in chat_files.saved_names() if name != chat_files.LAST]
        screen.say("\n".join(names) or "No conversations are saved; /save NAME saves this one.")
        return True
    screen.session.restore(SavedChat.read(chat_files.place_of(rest)))
    show_last_turn(screen)
    screen.keep()
    return True


def _undo(screen: ChatScreen, rest: str) -> bool:
    del rest
    said = screen.session.chat.undo()
    if said is None:
        screen.say("There is nothing to take back.")
        return True
    start = " ".join(said.split())
    shown = start if len(start) <= _START else f"{start[:_START]}…"
    screen.say(f"Took back: {printable(shown)}")
    screen.keep()
    return True


def _retry(screen: ChatScreen, rest: str) -> bool:
    del rest
    chat = screen.session.chat
    before = chat.messages
    said = chat.undo()
    if said is None:
        screen.say("There is no reply to write again.")
    elif not screen.turn(said, retry=screen.num_retries + 1):
        chat.messages = before
    return True


def _stats(screen: ChatScreen, rest: str) -> bool:
    del rest
    screen.show_stats = not screen.show_stats
    screen.say(f"Statistics are {'on' if screen.show_stats else 'off'}.")
    if screen.show_stats and screen.last_stats is not None:
        screen.say(stats_line(screen.last_stats))
    return True


def _plan(screen: ChatScreen, rest: str) -> bool:
    from edgespec.terminal.plan_table import print_plan, print_summary

    plan, path = screen.session.engine.plan, screen.session.engine.file.path
    if rest == "-v":
        print_plan(plan, path)
    else:
        last = screen.last_stats
        print_summary(plan, path, last.tokens_per_second if last is not None else None)
    return True


def _model(screen: ChatScreen, rest: str) -> bool:
    from edgespec.terminal.pulling import with_model

    session = screen.session
    if not rest:
        screen.say(f"{session.model_name}  {printable(str(session.engine.file.path))}")
        return True
    with usual_keys():  # it may ask before a download
        load = with_model(session.with_model(rest), yes=False)
    session.switch(load)
    screen.say(f"Going on with {session.model_name}.")
    return True


def _file(screen: ChatScreen, rest: str) -> bool:
    if not rest:
        raise OptionError("/file takes a path, and perhaps a message after it")
    text, said = attached_file(rest)
    num = screen.session.engine.count_tokens(text, raw=True)
    room = screen.session.engine.plan.context_length
    if num >= room:
        raise OptionError(f"the file has {num:,} tokens and the context holds {room:,}")
    screen.attached.append(text)
    if said:
        screen.turn(said)
    else:
        screen.say(f"Added {num:,} tokens to your next message.")
    return True


def _set(screen: ChatScreen, rest: str) -> bool:
    name, _, value = rest.partition(" ")
    if name == "system":
        return _system(screen, value.strip())
    if name == "markdown" and value in ("on", "off"):
        screen.markdown = value == "on"
        screen.say(f"Set markdown to {value}.")
        return True
    if not name:
        for known in settable():
            screen.say(f"{known:<19} {shown(getattr(screen.reply, known.replace('-', '_')))}")
        screen.say(f"{'markdown':<19} {'on' if screen.markdown else 'off'}")
        return True
    screen.reply = set_option(screen.reply, name, value.strip())
    screen.say(f"Set {name} to {printable(value.strip())}.")
    return True


def _copy(screen: ChatScreen, rest: str) -> bool:
    del rest
    from edgespec.terminal.chat.clipboard import copy

    turns = screen.session.chat.messages
    if not turns or turns[-1]["role"] != "assistant":
        screen.say("There is no reply to copy yet.")
    else:
        screen.say(copy(turns[-1]["content"]))
    return True


def _models(typed: str) -> list[str]:
    from edgespec.terminal.model_list import model_rows

    del typed
    return [row["name"] for row in model_rows()]


def _paths(typed: str) -> None:
    del typed


def _saved(typed: str) -> list[str] | None:
    return None if "/" in typed else chat_files.saved_names()


def _options(typed: str) -> list[str]:
    del typed
    return [f"{name} " for name in (*settable(), "markdown", "system")]


COMMANDS = (
    Command("/help", "", "show this help", _help, ("/?",)),
    Command("/file", "PATH [MESSAGE]", "add a text file to a message", _file, (), _paths),
    Command("/retry", "", "write the last reply again", _retry),
    Command("/undo", "", "take the last turn back", _undo),
    Command("/clear", "", "start a new conversation", _clear, ("/reset", "/new")),
    Command("/system", "[TEXT]", "show or set the system message; none drops it", _system),
    Command("/save", "NAME|PATH", "save the conversation", _save, (), _saved),
    Command("/load", "[NAME|PATH]", "go on with a saved one, or list them", _load, (), _saved),
    Command("/model", "[NAME]", "show the model, or go on with another", _model, (), _models),
    Command("/set", "[NAME VALUE]", "change an option, or list them", _set, (), _options),
    Command("/stats", "", "show or hide statistics after replies", _stats),
    Command("/plan", "[-v]", "show how the model runs; -v shows all", _plan),
    Command("/copy", "", "copy the last reply to the clipboard", _copy),
    Command("/bye", "", "quit", _bye, ("/exit", "/quit")),
)
HELP = {command.name: command.help for command in COMMANDS}
ARGUMENTS = {command.name: command.completions for command in COMMANDS if command.completions}
