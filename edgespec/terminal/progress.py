"""One line on stderr for work that takes a while, gone when it is done."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO

_PATIENCE_S = 0.3
_TICK_S = 0.1
_SLOW_S = 3.0
"""A start that takes longer is told of where there is no terminal too."""
_STARTS = {"plan", "kernels", "load", "measure", "peers", "cluster"}
_WIDTH = 24
_STAGES = {
    "plan": "planning how to run the model",
    "kernels": "compiling for this processor (first start only)",
    "load": "loading the model",
    "measure": "measuring this machine",
    "prefill": "reading the prompt",
    "peers": "starting the other engines",
    "store": "reading the texts",
    "batch": "writing replies",
    "cluster": "starting an engine on each node",
    "adapt": "reading the texts",
    "replay": "replaying",
}


class ProgressLine:
    """A progress callback, (stage, done, total), that draws on a terminal.

    A stage is shown once it has lasted 0.3 s. A thread of its own keeps the seconds running while
    the work says nothing, as a compiler does. Elsewhere a slow start gets a line for each of its
    stages, unless EDGESPEC_PROGRESS is 0.
    """

    def __init__(self, stream: TextIO | None = None, *, enabled: bool | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._draws = self._stream.isatty()
        quiet = not self._draws and os.environ.get("EDGESPEC_PROGRESS", "") in ("0", "off", "no")
        self._enabled = not quiet if enabled is None else enabled
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._stage: tuple[str, int, int] | None = None
        self._since = 0.0
        self._shown = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self._enabled:
            return
        with self._lock:
            if self._stage is None or self._stage[0] != stage:
                self._since = time.monotonic()
            self._stage = None if done >= total else (stage, done, total)
            if self._stage is None:
                self._erase()
            elif self._thread is None:
                thread = threading.Thread(target=self._draw_until_stopped, daemon=True)
                with suppress(RuntimeError):  # no thread is left: nothing is drawn
                    thread.start()
                    self._thread = thread

    def clear(self) -> None:
        """Take the line away: other text comes now."""
        with self._lock:
            self._stage = None
            self._erase()

    def close(self) -> None:
        """Clear the line and stop drawing."""
        self.clear()
        self._stop.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _draw_until_stopped(self) -> None:
        while not self._stop.wait(_TICK_S):
            with self._lock:
                if self._stage is not None:
                    self._show(self._stage, time.monotonic() - self._since)

    def _show(self, stage: tuple[str, int, int], passed: float) -> None:
        if self._draws and passed >= _PATIENCE_S:
            import shutil  # brings compressors: most starts draw nothing

            line = describe(*stage, passed)[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r\x1b[K" + line)
            self._stream.flush()
            self._shown = True
        elif not self._draws and passed >= _SLOW_S and stage[0] in _STARTS - self._said:
            self._said.add(stage[0])
            print(f"edgespec: {_STAGES[stage[0]]} …", file=self._stream, flush=True)

    def _erase(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


def describe(stage: str, done: int, total: int, seconds: float) -> str:
    """The line: what is done, how much of it when that is known, and since when."""
    name = _STAGES.get(stage, stage)
    if done <= 0:
        return f"{name} … {seconds:.0f} s"
    filled = min(done * _WIDTH // total, _WIDTH)
    bar = "█" * filled + "░" * (_WIDTH - filled)
    return f"{name} {bar} {done * 100 // total:3d} %"
