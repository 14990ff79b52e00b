"""A socket that frames are read from and written to."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from edgespec.backends.llamacpp.remote.key import Key

_CHUNK_BYTES = 1 << 18
_SMALL_BYTES = 1 << 9
_KEEPALIVE = (("TCP_KEEPIDLE", 1), ("TCP_KEEPALIVE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3))
"""Seconds of silence, seconds between questions and how many go unanswered: the system asks the
other machine, whatever the program there is busy with. macOS has its own name for the first.
"""
_UNSENT_MS = 60_000
"""Longer than a server that computes lets those wait who send it what comes next."""


class Wire:
    """Reads through a buffer; raises ConnectionError at the end, TimeoutError and other OSErrors as
    the socket does.
    """

    def __init__(self, connection: socket.socket, *, small: bool = False) -> None:
        """A `small` one is for greetings, and can be widened."""
        self._socket = connection
        self._buffer = memoryview(bytearray(_SMALL_BYTES if small else _CHUNK_BYTES))
        self._start = self._end = 0
        self._deadline: float | None = None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def protect(self, key: Key, *, server: bool = False) -> None:
        """Read and write through the key from now on, before anything else; raises OSError for
        another side without it.
        """
        made = key.accept(self._socket) if server else key.connect(self._socket)
        self._socket = made  # so that it can be interrupted while it greets
        key.greet(made)

    def widen(self) -> None:
        """Take a buffer for work; what was read ahead stays."""
        rest = self._buffer[self._start : self._end]
        wide = memoryview(bytearray(_CHUNK_BYTES))
        wide[: len(rest)] = rest
        self._buffer, self._start, self._end = wide, 0, len(rest)

    def until(self, seconds: float | None) -> None:
        """Have all that is read from now on be there within so long, however it trickles in."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._socket.settimeout(seconds)

    def watch_peer(self, silence_s: float | None) -> None:
        """Notice within 5 s that the other machine is gone, if nothing is on the way to it, and
        after so long that it says nothing although it is listened to.
        """
        self._socket.settimeout(silence_s)
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                option = getattr(socket, name, None)
                if option is not None and (name != "TCP_KEEPALIVE" or sys.platform == "darwin"):
                    self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS)

    def read(self, count: int) -> bytes:
        """Exactly so many bytes, few enough to keep."""
        parts = [bytes(chunk) for chunk in self.chunks(count)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def chunks(self, count: int) -> Iterator[memoryview]:
        """Exactly so many bytes as they come; each chunk is good until the next."""
        while count:
            if self._start == self._end:
                if self._deadline is not None:
                    left_s = self._deadline - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError("it takes too long")
                    self._socket.settimeout(left_s)
                self._start, self._end = 0, self._socket.recv_into(self._buffer)
                if not self._end:
                    raise ConnectionError("the connection was closed")
            end = min(self._end, self._start + count)
            chunk = self._buffer[self._start : end]
            self._start, count = end, count - len(chunk)
            yield chunk

    def send(self, data: bytes | memoryview) -> None:
        self._socket.sendall(data)

    def has_hung_up(self) -> bool:
        """Whether the other side has closed the connection, even if what it sent was not read;
        without Linux's way to ask, only if all was.
        """
        try:
            event = getattr(select, "POLLRDHUP", 0)
            if event:
                poll = select.poll()
                poll.register(self._socket, event)
                return bool(poll.poll(0))
            if not select.select([self._socket], [], [], 0)[0]:
                return False
            return not socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def interrupt(self) -> None:
        """Have whoever reads or writes find the connection closed."""
        with suppress(OSError):
            # Of a protected socket the one below: what is written later is to fail, not to go out
            # unprotected.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Also wakes whoever reads."""
        self.interrupt()
        self._socket.close()
