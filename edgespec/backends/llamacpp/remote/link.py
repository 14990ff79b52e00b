"""The way from llama.cpp to a worker, which outlives the worker.

llama.cpp ends the process when a worker dies in its hands. So it is given a loopback address
instead, where a thread passes everything on. Once the worker is gone, halted or talks nonsense, the
thread answers in its place with zeros, so that the pass comes to its end, and keeps why; whoever
asked for the pass looks, and throws its result away.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from edgespec.backends.llamacpp.remote.address import Address
from edgespec.backends.llamacpp.remote.asking import LIMIT_S, ask_worker, connect, hello
from edgespec.backends.llamacpp.remote.checking import check_reply
from edgespec.backends.llamacpp.remote.key import Key
from edgespec.backends.llamacpp.remote.protocol import (
    HEAD,
    LARGEST_REQUEST,
    SILENT,
    SIZE,
    Command,
    check_request,
    reply_bytes,
    stand_in,
)
from edgespec.backends.llamacpp.remote.pulse import Pulse
from edgespec.backends.llamacpp.remote.wire import Wire
from edgespec.errors import BackendError
from edgespec.memory.plan.placement import Device, DevicePart
from edgespec.system.threads import start_thread

SILENCE_S = 120.0
"""A worker that computes is silent. One that answers pulses is given up when it computed nothing
for so long; a bare server of llama.cpp's, when it said nothing."""
_LOOK_S = 0.5
_ZEROS = bytes(1 << 16)


class Link:
    """A loopback address that stands for one worker, until it is closed."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.failure = ""
        """Why the worker cannot be used any more, "" while it can."""
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_LOOK_S)
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        start_thread(threading.Thread(target=self._accept, name="edgespec-link", daemon=True))

    def check(self) -> None:
        """Raise BackendError when the worker failed; what was computed since is worth nothing."""
        if self.failure:
            raise BackendError(self.failure)

    def reset(self) -> None:
        """Use the worker again, or another that was started in its place; raises BackendError."""
        ask_worker(self.address)
        self.failure = ""

    def close(self) -> None:
        """Take no more connections; those there are end when llama.cpp closes them."""
        self._closed = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            # llama.cpp has one connection at a time, but may open the next before it is seen that
            # the last has ended.
            threading.Thread(target=self._carry, args=(connection,), daemon=True).start()

    def _carry(self, connection: socket.socket) -> None:
        """The life of one connection of llama.cpp's."""
        client, worker, pulse = Wire(connection), None, Pulse(self.address, SILENCE_S)
        with suppress(OSError, ValueError):  # llama.cpp closed it, as it does after every question
            while True:
                number, size = HEAD.unpack(client.read(HEAD.size))
                command = Command(number)
                check_request(command, size)
                if command is Command.HELLO:
                    client.read(size)
                    worker = self._greet(pulse)
                    answer = stand_in(command)
                    client.send(SIZE.pack(len(answer)) + answer)
                else:
                    with pulse.at_work():
                        self._pass_on(client, worker, pulse, command, size)
        pulse.close()
        client.close()
        if worker is not None:
            worker.close()

    def _greet(self, pulse: Pulse) -> Wire | None:
        """A connection to the worker, None when it has failed."""
        if self.failure:
            return None
        worker = None
        try:
            worker = connect(self.address, LIMIT_S)
            if hello(worker, self.address):
                worker.watch_peer(None)
                pulse.start(partial(self._give_up, worker))
            else:
                worker.watch_peer(SILENCE_S)
            return worker
        except (BackendError, OSError) as error:
            if worker is not None:
                worker.close()
            self._fail(error)
            return None

    def _give_up(self, worker: Wire, how: str) -> None:
        """The pulse has stopped: whoever waits for the worker goes on without it."""
        self._lose(how)
        worker.interrupt()

    def _pass_on(
        self, client: Wire, worker: Wire | None, pulse: Pulse, command: Command, size: int
    ) -> None:
        """One request and its reply, if it has one; the OSErrors that leave are the client's."""
        small = size <= LARGEST_REQUEST
        payload = client.read(size) if small else b""
        self._send(worker, HEAD.pack(command, size) + payload)
        for chunk in client.chunks(0 if small else size):
            self._send(worker, chunk)
            pulse.moved()
        if command in SILENT:
            return
        left = reply_bytes(command, payload)
        count = SIZE.pack(left)
        part: bytes | memoryview
        for part in self._reply(worker, command, payload, left):
            pulse.moved()
            client.send(count + bytes(part) if count else part)
            count, left = b"", left - len(part)
        if count:  # nothing came: the worker failed, or had nothing to say
            client.send(count + stand_in(command))
            left -= len(stand_in(command))
        while left:
            zeros = _ZEROS[:left]
            client.send(zeros)
            left -= len(zeros)

    def _send(self, worker: Wire | None, data: bytes | memoryview) -> None:
        if worker is not None and not self.failure:
            try:
                worker.send(data)
            except OSError as error:
                self._fail(error)

    def _reply(
        self, worker: Wire | None, command: Command, payload: bytes, expected: int
    ) -> Iterator[bytes | memoryview]:
        """What comes of a reply; it ends early when the worker fails."""
        if worker is None or self.failure:
            return
        try:
            size = SIZE.unpack(worker.read(SIZE.size))[0]
            if size != expected:
                raise ConnectionError(f"{size} bytes instead of {expected}")
            if command is Command.GET_TENSOR:
                yield from worker.chunks(expected)
                return
            reply = worker.read(expected)
            check_reply(command, payload, reply)
            yield reply
        except (OSError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, BackendError):
            self.failure = self.failure or str(error)
        elif isinstance(error, ValueError):
            self._lose(f"talks nonsense ({error})")
        elif isinstance(error, TimeoutError):
            self._lose(f"said nothing for {SILENCE_S:g} s")
        else:
            self._lose(f"is gone ({error})")

    def _lose(self, how: str) -> None:
        self.failure = self.failure or (
            f"the worker at {self.address} {how}; start it again there, then send the message "
            "again: nothing of the conversation is lost"
        )


class Links:
    """The links to all workers of a model; a context manager."""

    def __init__(self, devices: Sequence[Device | DevicePart]) -> None:
        """To the workers among the devices of a plan; raises OptionError for a key that is gone."""
        workers = [device for device in devices if device.kind == "worker"]
        keys = {device.key_file: Key(device.key_file) for device in workers if device.key_file}
        addresses = [Address.parse(device.name, keys.get(device.key_file)) for device in workers]
        self.all = tuple(Link(address) for address in addresses)
        self.endpoints = {str(link.address): link.endpoint for link in self.all}
        """The loopback address that stands for each, by its own."""

    @property
    def failed(self) -> bool:
        return any(link.failure for link in self.all)

    def check(self) -> None:
        """Raise BackendError when one of them failed."""
        for link in self.all:
            link.check()

    def reset(self) -> None:
        """Use all workers again; raises BackendError when one does not answer."""
        for link in self.all:
            link.reset()

    def fail(self, why: str) -> None:
        """Have everything that is asked from now on fail until `reset`."""
        for link in self.all:
            link.failure = link.failure or why

    def close(self) -> None:
        for link in self.all:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
