"""An engine for as long as a command needs it, with progress on stderr while it opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.engine.reply_options import ReplyOptions
from edgespec.engine.request import check_options
from edgespec.loading.load_options import LoadOptions
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.terminal.progress import ProgressLine

if TYPE_CHECKING:  # it brings Numba, and planning measures what the process holds without it
    from edgespec.engine.engine import Engine


@contextmanager
def opened_engine(load: LoadOptions, reply: ReplyOptions) -> Iterator[tuple[Engine, ProgressLine]]:
    """The engine for replies with these options, and the line that shows progress."""
    from edgespec.loading.load import open_engine

    check_options(reply)
    load = load if reply.speculation else load.without_drafts()
    with ProgressLine() as progress, open_engine(replace(load, progress=progress)) as engine:
        yield engine, progress


def check_chat_template(load: LoadOptions) -> None:
    """Raise TemplateError for a model that no conversation can be held with."""
    with open_model(resolve(load.model), any_engine=True) as file:
        file.check_chat_template()
