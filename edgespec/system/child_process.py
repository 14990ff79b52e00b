"""Another engine in a process of its own, asked in lines of JSON.

A process, so that two engines' threads never share a pool, a crash of a build that does not suit
the processor ends as a sentence, and what the engine prints stays off the terminal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from edgespec.errors import EdgeSpecError
from edgespec.system.disk_cache import cache_folder
from edgespec.system.threads import start_thread
from edgespec.system.wall import enclose

_END_S = 5.0
_MOST_ANSWER = 64 << 20
_MOST_WORDS = 64 << 10
"""Bytes of an answer, and of the last that a process said, that are read: it may be an attacker's
by now.
"""
_KILLED = 9
"""By the system, for memory, more often than not."""


def can_have_children() -> bool:
    """Whether this program is Python itself: nobody knows what starting another one does."""
    name = Path(sys.executable or "").name.lower()
    return name.startswith("python") and not getattr(sys, "frozen", False)


class PeerError(EdgeSpecError):
    """Another engine is missing, refused the work, or crashed; says why."""


class PeerCrash(PeerError):
    """It was ended by a signal that nobody sent: a fault of its own, which comes again."""


class Child:
    """`python -m module`, which calls `serve`; `greeting` is its answer to the request.

    Raises PeerError, PeerCrash when the process dies of a fault: `name` is what the sentence calls
    it and `crash_advice` what it says to do about a crash. It has `limit_s` for the greeting.
    """

    def __init__(
        self,
        module: str,
        request: Any,
        *,
        name: str,
        crash_advice: str = "",
        limit_s: float | None = None,
        **environment: str,
    ) -> None:
        import subprocess
        import tempfile

        self._name, self._crash_advice = name, crash_advice
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "EDGESPEC_CACHE": str(cache_folder()),
            }
            | environment,
        )
        late = threading.Event()
        clock = threading.Timer(limit_s or 0, self._end_late, (late,))
        try:
            if limit_s is not None:
                start_thread(clock)
            self.greeting = self.ask(request)
        except BaseException:
            self.close()
            if late.is_set():
                raise PeerError(f"{name} took longer than {limit_s:g} s") from None
            raise
        finally:
            clock.cancel()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _end_late(self, late: threading.Event) -> None:
        late.set()
        self._process.kill()

    def ask(self, question: Any) -> Any:
        """The answer to one question."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline(_MOST_ANSWER)
        except OSError:  # nobody reads any more
            answer = b""
        if not answer:
            code = self._process.wait()
            crashed = code >= 0xC0000000 or (code < 0 and code != -_KILLED)
            raise (PeerCrash if crashed else PeerError)(self._last_words(code))
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            raise PeerError(f"{self._name} gave an answer that is none") from None

    def _last_words(self, code: int) -> str:
        if code < 0:
            return f"{self._name} crashed with {signal.Signals(-code).name}{self._crash_advice}"
        if code >= 0xC0000000:  # how Windows tells it
            return f"{self._name} crashed with 0x{code:X}{self._crash_advice}"
        self._log.seek(max(self._log.seek(0, os.SEEK_END) - _MOST_WORDS, 0))
        lines = self._log.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{self._name} failed: {said or f'exit code {code}'}"

    def close(self) -> None:
        """End the process."""
        import subprocess

        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    start: Callable[[Any], tuple[Any, Callable[[Any], Any]]],
    reads: Callable[[Any], Iterable[Path] | None] = lambda request: None,
) -> None:
    """The child's side: `start` takes the request, returns a greeting and who answers questions.

    `reads` says which files a request is about, for a process that is to reach nothing else where
    the system has such walls; None for one that has to.
    """
    # Answers own the real standard output; whatever the engine prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # in order with it, not when a buffer is full
    request = json.loads(sys.stdin.readline())
    readable = reads(request)
    if readable is not None:
        enclose(readable)
    greeting, answer = start(request)
    print(json.dumps(greeting), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
