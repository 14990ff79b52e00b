"""The line where messages are typed: editing, history, completion, several lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style

QUIT = "quit"
QUOTES = '"""'
_HINT = "Send a message (/help for help)"
_LEAVE = "Ctrl-C again, Ctrl-D or /bye to quit"
_MENU_LINES = 6
_STYLE = Style.from_dict(
    {
        "hint": "ansibrightblack",
        "completion-menu": "bg:default",
        "completion-menu.completion.current": "reverse",
        "completion-menu.meta.completion": "ansibrightblack bg:default",
        "completion-menu.meta.completion.current": "ansibrightblack bg:default",
    }
)

Completions = Callable[[str], Iterable[str] | None]
"""What may follow a command: given what is typed of it; None asks for paths."""


class ChatPrompt:
    """Reads one message after the other from a terminal."""

    def __init__(
        self,
        commands: dict[str, str],
        arguments: dict[str, Completions],
        history: Path | None,
        output: Output | None = None,
    ) -> None:
        """`commands` with their help, `arguments` of those that have some to choose from; without
        `history` what is typed is remembered until the end.
        """
        kept: History = InMemoryHistory() if history is None else FileHistory(str(history))
        self._is_hinted = False
        self._session: PromptSession[str] = PromptSession(
            FormattedText([("bold", ">>> ")]),
            multiline=True,
            prompt_continuation=_continuation,
            placeholder=lambda: FormattedText([("class:hint", self._hint)]),
            completer=_CommandCompleter(commands, arguments),
            complete_while_typing=Condition(self._types_command),
            reserve_space_for_menu=_MENU_LINES,
            key_bindings=self._bindings(),
            history=kept,
            style=_STYLE,
            enable_open_in_editor=True,
            enable_suspend=True,
            output=output,
        )

    def read(self) -> str:
        """The next message; EOFError is for Ctrl-D, KeyboardInterrupt(QUIT) for Ctrl-C twice."""
        self._is_hinted = False
        return unquoted(self._session.prompt())

    @property
    def _hint(self) -> str:
        return _LEAVE if self._is_hinted else _HINT

    def _types_command(self) -> bool:
        document = self._session.default_buffer.document
        return document.text.startswith("/") and "\n" not in document.text

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _enter(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            state = buffer.complete_state
            if state is not None and state.current_completion is not None:
                buffer.apply_completion(state.current_completion)
            elif buffer.document.text_before_cursor.endswith("\\"):
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            elif is_open(buffer.text):
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _interrupt(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            elif self._is_hinted:
                event.app.exit(exception=KeyboardInterrupt(QUIT), style="class:aborting")
            else:
                self._is_hinted = True

        return keys


def is_open(text: str) -> bool:
    """Whether a message in triple quotes has not ended yet."""
    if not text.lstrip().startswith(QUOTES):
        return False
    inside = text.lstrip()[len(QUOTES) :]
    return not inside.rstrip().endswith(QUOTES)


def unquoted(text: str) -> str:
    """A message without the triple quotes around it."""
    bare = text.strip()
    if bare.startswith(QUOTES) and bare.endswith(QUOTES) and len(bare) >= 2 * len(QUOTES):
        return bare[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text


def _continuation(width: int, line: int, wraps: int) -> str:
    del width, line
    return "    " if wraps else "... "


class _CommandCompleter(Completer):
    """Completes commands and what follows them; messages are left alone."""

    def __init__(self, commands: dict[str, str], arguments: dict[str, Completions]) -> None:
        self._commands, self._arguments = commands, arguments
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, rest = text.partition(" ")
        if not space:
            for command, said in self._commands.items():
                if command.startswith(name):
                    yield Completion(command, -len(name), display_meta=said)
            return
        known = self._arguments.get(name)
        if known is None:
            return
        names = known(rest)
        if names is None:
            path = rest.lstrip('"')
            yield from self._paths.get_completions(Document(path, len(path)), event)
            return
        for one in names:
            if one.startswith(rest):
                yield Completion(one, -len(rest))
