"""Ctrl-C while a reply is written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.engine.reply_stream import Stream


@contextmanager
def stopping(stream: Stream) -> Iterator[None]:
    """Let Ctrl-C end a reply between two of its steps, and raise KeyboardInterrupt after that.

    Raised in the middle of a step, it could be lost in a callback. It is raised at once before the
    first token, as long prompts are read in one step, and when Ctrl-C is pressed again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears of signals
        return
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        if asked or not stream.token_ids:
            raise KeyboardInterrupt
        asked = True
        stream.cancel()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
    if asked:
        raise KeyboardInterrupt
