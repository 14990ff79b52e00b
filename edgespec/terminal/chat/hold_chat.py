"""`edgespec chat`: at a terminal, or with a turn for each line of a pipe."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.engine.reply_options import ReplyOptions
from edgespec.engine.saved_chat import SavedChat
from edgespec.errors import OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.terminal.chat import chat_files
from edgespec.terminal.chat.chat_screen import ChatScreen
from edgespec.terminal.chat.chat_session import ChatSession
from edgespec.terminal.chat.quiet_keys import quiet_keys
from edgespec.terminal.text_io import printable

if TYPE_CHECKING:
    from edgespec.terminal.chat.chat_prompt import ChatPrompt


def hold_chat(
    first: str | None,
    load: LoadOptions,
    reply: ReplyOptions,
    *,
    system: str | None = None,
    resume: bool = False,
    markdown: bool = False,
    as_json: bool = False,
) -> bool:
    """Talk until the user leaves or the pipe ends; False when a turn of a pipe failed."""
    saved = last_chat() if resume else None
    if saved is not None and load.model is None and saved.model:
        load = replace(load, model=saved.model)
    at_terminal = sys.stdin.isatty()
    # Planning counts what the process holds, so what the screen needs is loaded before.
    prompt = make_prompt() if at_terminal else None
    if markdown:
        import edgespec.terminal.markdown_text  # noqa: F401
    quiet = quiet_keys() if at_terminal else nullcontext()
    with quiet, ChatSession(load, reply, system) as session:
        screen = ChatScreen(session, replace(reply, prefix=None), as_json, markdown)
        if saved is not None:
            session.restore(saved)
            if system is not None:
                session.chat.system = system
        if prompt is None:
            screen.piped(first)
            return not screen.failed
        _talk(screen, prompt, first, resumed=saved is not None)
        return True


def _talk(screen: ChatScreen, prompt: ChatPrompt, first: str | None, *, resumed: bool) -> None:
    from edgespec.terminal.chat.chat_commands import show_last_turn
    from edgespec.terminal.chat.converse import converse

    screen.keeps = not screen.as_json
    _greet(screen.session)
    if resumed:
        show_last_turn(screen)
        screen.say("")
    converse(screen, prompt.read, first)


def last_chat() -> SavedChat:
    """The conversation to resume; raises OptionError when there is none."""
    place = chat_files.last_place()
    if place is None:
        raise OptionError("--resume finds nothing, because EDGESPEC_HISTORY keeps nothing")
    if not place.exists():
        raise OptionError("there is no conversation to resume yet; leave --resume out")
    return SavedChat.read(place)


def make_prompt() -> ChatPrompt:
    """The line to type at, on stdout, or on stderr where that goes elsewhere."""
    from prompt_toolkit.output import create_output

    from edgespec.terminal.chat.chat_commands import ARGUMENTS, HELP
    from edgespec.terminal.chat.chat_prompt import ChatPrompt

    output = None if sys.stdout.isatty() else create_output(always_prefer_tty=True)
    return ChatPrompt(HELP, ARGUMENTS, chat_files.history_place(), output)


def _greet(session: ChatSession) -> None:
    from rich.console import Console
    from rich.text import Text

    plan = session.engine.plan
    facts = f"{plan.quantisation} · context {plan.context_length:,} tokens"
    console = Console(stderr=True, highlight=False, emoji=False)
    console.print(Text(printable(session.model_name), "bold"), Text(f"· {facts}", "dim"))
    console.print(Text("/help for help, /bye to quit\n", "dim"))
