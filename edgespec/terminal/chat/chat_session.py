"""The model and the conversation that a chat is about; both can be changed on the way."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from edgespec.engine.reply_options import ReplyOptions
from edgespec.engine.saved_chat import SavedChat
from edgespec.errors import EdgeSpecError
from edgespec.loading.load_options import LoadOptions
from edgespec.terminal.opened_engine import check_chat_template, opened_engine
from edgespec.terminal.progress import ProgressLine
from edgespec.terminal.text_io import printable

if TYPE_CHECKING:
    from edgespec.engine.chat import Chat
    from edgespec.engine.engine import Engine


class ChatSession:
    """An open engine and one conversation with it; a context manager."""

    engine: Engine
    progress: ProgressLine
    chat: Chat

    def __init__(self, load: LoadOptions, reply: ReplyOptions, system: str | None = None) -> None:
        """Raises TemplateError before anything is loaded, and what loading raises."""
        self._load, self._reply = load, reply
        self._opened = ExitStack()
        self._open(load)
        self.chat = self.engine.chat(system, prefix=reply.prefix)

    @property
    def model_name(self) -> str:
        file = self.engine.file
        return printable(file.spec.name or file.path.name)

    def restore(self, saved: SavedChat) -> None:
        """Go on with a saved conversation in place of this one."""
        self.chat.restore(saved)

    def switch(self, load: LoadOptions) -> None:
        """Go on with another model; with the one before where that cannot be loaded.

        The budget holds one of them, so the one before is closed first.
        """
        check_chat_template(load)
        messages = self.chat.messages
        self.chat.close()
        self._opened.close()
        try:
            self._open(load)
            self._load = load
        except EdgeSpecError:
            self._open(self._load)
            raise
        finally:
            self.chat = self.engine.chat()
            self.chat.messages = messages

    def with_model(self, model: str) -> LoadOptions:
        """What to load for another model; drafts that need files of their own are this one's."""
        return replace(self._load, model=model, draft_model=None, store=None)

    def _open(self, load: LoadOptions) -> None:
        check_chat_template(load)
        self.engine, self.progress = self._opened.enter_context(opened_engine(load, self._reply))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.close()
