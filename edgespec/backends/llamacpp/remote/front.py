"""A worker's side: ggml's RPC server in a process of its own, and a door in front of it.

The server itself knows no budget, allocates whatever it is told to, holds every tensor twice while
it arrives, and dies of a request it does not like. So it listens on the loopback address alone, and
the door passes on what fits the budget, cuts large tensors into pieces, answers for the memory, and
starts the server anew when it is gone.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from edgespec.backends.llamacpp.remote.buffers import MOST_BUFFERS, Buffers
from edgespec.backends.llamacpp.remote.key import Key
from edgespec.backends.llamacpp.remote.protocol import (
    ALLOC_REPLY,
    ALLOC_REQUEST,
    CAPABILITIES,
    GET_REQUEST,
    HAS_PULSE,
    HEAD,
    HELLO_REPLY,
    MAJOR,
    MEMORY_REPLY,
    PULSE,
    PULSE_REPLY,
    SET_HEAD,
    SILENT,
    SIZE,
    Command,
    check_request,
    reply_bytes,
    request,
    stand_in,
)
from edgespec.backends.llamacpp.remote.server import RpcServer
from edgespec.backends.llamacpp.remote.wire import Wire
from edgespec.errors import BackendError, BudgetError
from edgespec.system.resident_memory import resident_bytes
from edgespec.system.size import MIB, format_size, option_size
from edgespec.system.threads import start_thread

WORK_BYTES = 32 * MIB
"""What the server holds beside buffers: the graph, the processor's scratch, a piece of a tensor."""
PIECE_BYTES = 4 * MIB
_TURN_S = 2.0
"""How long a client waits for the one before it to be gone."""
_LEAVE_S = 0.5
"""How long a client that has hung up may take to be gone."""
_SAMPLE_S = 0.05
_GREETING_S = 5.0
_IDLE_S = 10.0
"""How long a client that holds nothing may keep another waiting."""
_REQUEST_S, _SLOWEST_BYTES_PER_S = 30.0, 1 << 16
"""What a request may take to arrive, and how much longer by its size."""
MOST_CLIENTS = 64
"""Connections at a time, beside the one that is served: each has a thread."""
_HALTED_S = 1.0
"""A server that was stopped so long, while the door was not, does not go on by itself."""
Say = Callable[[str], None]


class Front:
    """The door of a worker: one client at a time, inside a budget of resident memory.

    Raises BudgetError for a budget that leaves nothing to offer, BackendError for an address that
    cannot be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        budget_bytes: int,
        server: RpcServer,
        say: Say,
        key: Key | None = None,
    ) -> None:
        """With a key, only clients that have it are let in."""
        self._server, self._say, self._budget_bytes = server, say, budget_bytes
        self._key = key
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family)
        except (OSError, UnicodeError) as error:
            raise BackendError(
                f"{host} port {port} cannot be listened on: {error}; try another --port"
            ) from None
        self.port = int(self._listener.getsockname()[1])
        server.start()
        base = resident_bytes() + server.held_bytes() + WORK_BYTES
        self.offer_bytes = budget_bytes - base
        if self.offer_bytes < MIB:
            server.stop()
            self._listener.close()
            raise BudgetError(
                f"the budget of {format_size(budget_bytes)} leaves a worker nothing to offer: it "
                f"takes {format_size(base)} itself; try --memory {option_size(base + 64 * MIB)}"
            )
        self.peak_bytes = 0
        self.held = Buffers(server.operations())
        """The client's buffers."""
        self._computed_at = time.monotonic()
        """When the server was last seen to compute."""
        self._turn = threading.Lock()
        self._heard_at = 0.0
        """When the client that has its turn last asked for something."""
        self._lock = threading.Lock()
        self._open: list[Wire] = []
        """Connections, the oldest first."""
        self._served: Wire | None = None
        start_thread(threading.Thread(target=self._watch, name="edgespec-watch", daemon=True))

    def serve(self) -> None:
        """Serve clients until the process ends."""
        try:
            while True:
                try:
                    connection, _ = self._listener.accept()
                    self._receive(connection)
                except (OSError, RuntimeError):  # no more files or threads: some end soon
                    if self._listener.fileno() < 0:
                        return
                    time.sleep(_SAMPLE_S)
        finally:
            self._server.stop()

    def _receive(self, connection: socket.socket) -> None:
        """Have a thread talk to a client; with too many of them, the oldest that waits must go."""
        with self._lock:
            waiting = [wire for wire in self._open if wire is not self._served]
            if len(waiting) >= MOST_CLIENTS:
                waiting[0].interrupt()
            if len(waiting) >= 2 * MOST_CLIENTS:  # they are not gone yet
                connection.close()
                return
            client = Wire(connection, small=True)
            self._open.append(client)
        try:
            threading.Thread(target=self._client, args=(client,), daemon=True).start()
        except RuntimeError:
            self._forget(client)
            raise

    def _forget(self, client: Wire) -> None:
        client.close()
        with self._lock:
            self._open.remove(client)

    def _watch(self) -> None:
        """A server past the budget, or halted, is ended, and its client told by that."""
        computed_s, halted_s = 0.0, 0.0
        while True:
            time.sleep(_SAMPLE_S)
            before, computed_s = computed_s, self._server.computed_s()
            if computed_s != before:
                self._computed_at = time.monotonic()
            halted_s = halted_s + _SAMPLE_S if self._server.is_halted() else 0.0
            if halted_s >= _HALTED_S and self._server.runs():
                self._server.stop()
                self._say("the RPC server was halted, so its client was dropped")
            held = resident_bytes() + self._server.held_bytes()
            self.peak_bytes = max(self.peak_bytes, held)
            if held > self._budget_bytes and self._server.runs():
                self._server.stop()
                self._say(
                    f"the worker held {format_size(held)}, over its budget of "
                    f"{format_size(self._budget_bytes)}, so its client was dropped"
                )

    def _client(self, client: Wire) -> None:
        try:
            self._talk_to(client)
        finally:
            self._forget(client)

    def _talk_to(self, client: Wire) -> None:
        try:
            client.until(_GREETING_S)
            if self._key is not None:
                client.protect(self._key, server=True)
            client.watch_peer(None)
            client.until(_GREETING_S)
            number, size = HEAD.unpack(client.read(HEAD.size))
            if number == PULSE:
                self._answer_pulses(client)
            if (number, size) != (Command.HELLO, len(CAPABILITIES)):
                return
        except OSError:
            return
        if not self._take_turn():  # another is at work
            return
        server, self._served = None, client
        self._heard_at = time.monotonic()
        try:
            client.widen()
            if not self._server.runs():
                self._say("the RPC server has ended; starting it again")
            self._server.start()
            server = Wire(self._server.connect())
            server.watch_peer(None)
            self._talk(client, server, number, size)
        except ValueError as error:
            self._say(f"a client was dropped for what it asked: {error}")
        except OSError:  # one of both is gone
            pass
        except BackendError as error:
            self._say(str(error))
        finally:
            if server is not None:
                server.close()
            if self.held:
                held, peak = format_size(self.held.num_bytes), format_size(self.peak_bytes)
                self._say(f"a client with {held} has left; peak {peak}")
            self.held.clear()
            self._served = None
            self._turn.release()

    def _take_turn(self) -> bool:
        """Wait for the client before to be gone. If it is, and the server still computes for it,
        the server is ended: nobody waits for that pass.
        """
        end = time.monotonic() + _TURN_S
        while not self._turn.acquire(timeout=_LEAVE_S):
            before = self._served
            if before is not None and before.has_hung_up():
                self._server.stop()
            elif before is not None and self._is_idle():
                before.interrupt()
            elif time.monotonic() >= end:
                return False
        return True

    def _is_idle(self) -> bool:
        """Whether the client that has its turn holds nothing and asks for nothing."""
        return not self.held and time.monotonic() - self._heard_at > _IDLE_S

    def _answer_pulses(self, client: Wire) -> NoReturn:
        """Say that this process is alive, and how the server is, whatever another client has it do;
        ends with an OSError.
        """
        client.until(None)
        while True:
            idle_s = min(int(time.monotonic() - self._computed_at), 1 << 31)
            client.send(PULSE_REPLY.pack(PULSE_REPLY.size - SIZE.size, idle_s))
            client.read(HEAD.size)

    def _talk(self, client: Wire, server: Wire, number: int, size: int) -> None:
        """Pass on requests, of which the first has begun, until one of both is gone; raises
        ValueError for a broken one.
        """
        special: dict[Command, Any] = {
            Command.HELLO: self._hello,
            Command.ALLOC_BUFFER: self._allocate,
            Command.FREE_BUFFER: self._free,
            Command.GET_DEVICE_MEMORY: self._memory,
            Command.GET_TENSOR: self._get,
        }
        while True:
            command = Command(number)
            check_request(command, size)
            client.until(_REQUEST_S + size / _SLOWEST_BYTES_PER_S)
            if command is Command.SET_TENSOR:
                self._set(client, server, size)
            else:
                payload = client.read(size)
                self.held.check(command, payload)
                client.until(None)  # the reply may take what it takes
                special.get(command, self._plain)(client, server, command, payload)
            client.until(None)  # a conversation may rest for hours
            number, size = HEAD.unpack(client.read(HEAD.size))
            self._heard_at = time.monotonic()

    def _plain(self, client: Wire, server: Wire, command: Command, payload: bytes) -> None:
        server.send(request(command, payload))
        if command not in SILENT:
            client.send(self._reply(server, reply_bytes(command, payload)))

    @staticmethod
    def _reply(server: Wire, expected: int) -> bytes:
        """A small reply with its count in front."""
        count = server.read(SIZE.size)
        if SIZE.unpack(count)[0] != expected:
            raise ValueError("the server speaks another version of the protocol")
        return count + server.read(expected)

    def _hello(self, client: Wire, server: Wire, command: Command, payload: bytes) -> None:
        """Without what a connection could do beside TCP, which would pass the door by."""
        server.send(request(command, bytes(len(payload))))
        told = self._reply(server, HELLO_REPLY.size)[SIZE.size :]
        if told[0] != MAJOR:
            raise BackendError(
                f"this llama-cpp-python speaks version {told[0]} of the protocol, and this version "
                f"of EdgeSpec knows {MAJOR}; install the versions that belong together"
            )
        answer = HELLO_REPLY.pack(*told[:3], HAS_PULSE, bytes(len(payload)))
        client.send(SIZE.pack(len(answer)) + answer)

    def _allocate(self, client: Wire, server: Wire, command: Command, payload: bytes) -> None:
        _, size = ALLOC_REQUEST.unpack(payload)
        held = self.held.num_bytes
        if size + held > self.offer_bytes or len(self.held) >= MOST_BUFFERS:
            self._say(
                f"a client asked for {format_size(size)} beside {format_size(held)}, "
                f"more than the {format_size(self.offer_bytes)} on offer: refused"
            )
            answer = stand_in(command)
            client.send(SIZE.pack(len(answer)) + answer)
            return
        server.send(request(command, payload))
        reply = self._reply(server, ALLOC_REPLY.size)
        place, size = ALLOC_REPLY.unpack(reply[SIZE.size :])
        if place:
            asked = SIZE.pack(place)
            server.send(request(Command.BUFFER_GET_BASE, asked))
            base = SIZE.unpack(self._reply(server, SIZE.size)[SIZE.size :])[0]
            self.held.add(place, base, size)
        client.send(reply)

    def _free(self, client: Wire, server: Wire, command: Command, payload: bytes) -> None:
        self.held.free(payload)
        self._plain(client, server, command, payload)

    def _memory(self, client: Wire, server: Wire, command: Command, payload: bytes) -> None:
        answer = MEMORY_REPLY.pack(self.offer_bytes - self.held.num_bytes, self.offer_bytes)
        client.send(SIZE.pack(len(answer)) + answer)

    def _set(self, client: Wire, server: Wire, size: int) -> None:
        """A tensor's bytes in pieces: the server keeps each in memory twice."""
        asked = client.read(SET_HEAD.size)
        tensor, _, offset = SET_HEAD.unpack(asked)
        left = size - SET_HEAD.size
        self.held.set_bytes(asked, left)
        while left > 0:
            piece = min(left, PIECE_BYTES)
            head = HEAD.pack(Command.SET_TENSOR, SET_HEAD.size + piece)
            begin = head + SET_HEAD.pack(tensor, 0, offset)
            for chunk in client.chunks(piece):
                server.send(begin + bytes(chunk) if begin else chunk)
                begin = b""
            offset, left = offset + piece, left - piece

    def _get(self, client: Wire, server: Wire, command: Command, payload: bytes) -> None:
        tensor, offset, left = GET_REQUEST.unpack(payload)
        begin = SIZE.pack(left)
        while left > 0:
            piece = min(left, PIECE_BYTES)
            server.send(request(command, GET_REQUEST.pack(tensor, offset, piece)))
            if SIZE.unpack(server.read(SIZE.size))[0] != piece:
                raise ValueError("the server speaks another version of the protocol")
            for chunk in server.chunks(piece):
                client.send(begin + bytes(chunk) if begin else chunk)
                begin = b""
            offset, left = offset + piece, left - piece
        if begin:
            client.send(begin)
