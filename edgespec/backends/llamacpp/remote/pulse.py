"""Whether a worker that owes an answer is alive, asked on a connection beside its work.

TCP notices a process that has ended, and a machine that is gone; a process that was halted goes on
having its packets acknowledged, and looks like one that computes. The worker's door answers pulses
in a thread of its own, however long a pass takes, so no answer means that nobody is at home.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgespec.backends.llamacpp.remote.address import Address
from edgespec.backends.llamacpp.remote.asking import connect
from edgespec.backends.llamacpp.remote.protocol import HEAD, PULSE, PULSE_REPLY
from edgespec.backends.llamacpp.remote.wire import Wire
from edgespec.errors import BackendError

BEAT_S = 0.5
"""Between pulses, and how long an answer may take before the first."""
PATIENCE_S = 3.0
"""How long a pulse may take while no data moves either."""


class Pulse:
    """The watch over one connection; its thread sleeps while the worker owes nothing."""

    def __init__(self, address: Address, idle_s: float) -> None:
        """A server that is asked and uses no processor is given up after `idle_s`."""
        self._address, self._idle_s = address, idle_s
        self._changed = threading.Condition()
        self._asked_at = self._moved_at = 0.0
        """Since when an answer is owed, 0 if none is, and when a part of it came."""
        self._closed = False
        self._wire: Wire | None = None

    def start(self, lost: Callable[[str], None]) -> None:
        """Watch from now on; `lost` is told once, in words, how the worker was lost."""
        threading.Thread(
            target=self._watch, args=(lost,), name="edgespec-pulse", daemon=True
        ).start()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While the worker owes something."""
        self._asked_at = self._moved_at = time.monotonic()
        with self._changed:
            self._changed.notify()
        try:
            yield
        finally:
            self._asked_at = 0.0

    def moved(self) -> None:
        """Data came or went, which is a sign of life as well."""
        self._moved_at = time.monotonic()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self, lost: Callable[[str], None]) -> None:
        try:
            while self._is_due():
                how = self._beat()
                if how and self._asked_at:
                    lost(how)
                    return
        finally:
            self._hang_up()

    def _is_due(self) -> bool:
        """Wait until an answer is owed, and a while more; False when it is all over."""
        with self._changed:
            while not (self._asked_at or self._closed):
                self._changed.wait()
            self._changed.wait_for(lambda: self._closed, BEAT_S)
            return not self._closed

    def _beat(self) -> str:
        """Ask once, if somebody still waits; returns how the worker was lost, "" if it was not."""
        asked_at = self._asked_at
        if not asked_at or time.monotonic() - asked_at < BEAT_S:
            return ""
        try:
            idle_s = self._ask()
        except (OSError, BackendError):
            self._hang_up()
            quiet_s = time.monotonic() - self._moved_at
            if quiet_s < PATIENCE_S or self._asked_at != asked_at:
                return ""
            return f"has not answered for {quiet_s:.0f} s: it is halted, or cannot be reached"
        waited_s = time.monotonic() - asked_at
        if self._asked_at == asked_at and min(idle_s, waited_s) >= self._idle_s:
            return f"has computed nothing for {self._idle_s:g} s"
        return ""

    def _ask(self) -> int:
        """For how many seconds the server has not computed; raises OSError, BackendError."""
        if self._wire is None:
            self._wire = connect(self._address, PATIENCE_S)
            self._wire.watch_peer(PATIENCE_S)
        self._wire.send(HEAD.pack(PULSE, 0))
        return int(PULSE_REPLY.unpack(self._wire.read(PULSE_REPLY.size))[1])

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
