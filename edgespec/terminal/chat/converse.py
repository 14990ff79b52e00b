"""The loop of a chat at a terminal: a line is read, and is a message or a command."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.errors import EdgeSpecError
from edgespec.terminal.chat.chat_commands import find_command
from edgespec.terminal.chat.chat_screen import ChatScreen
from edgespec.terminal.show_pieces import DIM, PLAIN


def converse(screen: ChatScreen, read: Callable[[], str], first: str | None) -> None:
    """Prompt, reply, and again until /bye, Ctrl-D or Ctrl-C twice."""
    if first is not None:
        screen.say(f">>> {first}")
        _answer(screen, first)
    stays = True
    while stays:
        try:
            stays = _answer(screen, read())
        except EOFError:
            return
        except KeyboardInterrupt as stop:
            if stop.args:  # else it was meant for the reply, which had just ended
                raise


def _answer(screen: ChatScreen, text: str) -> bool:
    """Do what a line says; False when it says to leave."""
    if not text.strip():
        return True
    command, rest = find_command(text)
    try:
        if command is None:
            screen.turn(text)
            return True
        stays = command.run(screen, rest)
    except EdgeSpecError as error:
        screen.complain(error)
        return True
    except KeyboardInterrupt:
        print(f"{DIM}[stopped]{PLAIN}\n", flush=True)
        return True
    if stays and command.name != "/retry":
        screen.say("")
    return stays
